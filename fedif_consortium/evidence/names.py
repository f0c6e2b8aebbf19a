"""Names of members: which two of them a reader takes for one.

A look-alike of a member's name on a statement takes what is that member's. So two names are
compared as people read them, and a word in letters of two scripts is no name.

References
----------
https://www.unicode.org/Public/security/17.0.0/confusables.txt (UTS 39, 2025): what looks alike.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from fedif_flower.errors import ConfigError

# Scripts that are written side by side within a word, in Japanese, Korean and Chinese.
_WRITTEN_TOGETHER = (
    {"CJK", "HIRAGANA", "KATAKANA"},
    {"CJK", "HANGUL"},
    {"CJK", "BOPOMOFO"},
)
MOST_LETTERS = 80
# Between a member's name and the number of a key that it had before, in the name of the key's file.
EARLIER = "~"
# What Unicode has programs draw nothing for (Default_Ignorable_Code_Point): nobody sees it.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_BLANK = "\u2800"  # A letter of Braille without a dot: it looks like a space.
_MINUS = "\u2212"
# Letters and digits that many typefaces draw alike: i in capitals, l and 1; o and 0.
_DRAWN_ALIKE = str.maketrans({"I": "l", "1": "l", "|": "l", "0": "o"})
# Letters of the Latin script that look like one of a to z, apostrophes and dashes, by what they
# look like. Unicode lists them, but for the small capitals, kra and the j without a dot, which were
# added here; of the tone letter six it lists the capital.
_LOOKS_LIKE = {
    "a": "\u0251\u1d00",
    "b": "\u0185\u0299",
    "c": "\u1d04",
    "d": "\u1d05",
    "e": "\u1d07\uab32",
    "f": "\u0192\ua730\ua799\uab35",
    "g": "\u018d\u0261\u0262\u1d83",
    "h": "\u029c",
    "i": "\u0131\u0269\u026a",
    "j": "\u0237\u1d0a",
    "k": "\u0138\u1d0b",
    "l": "\u01c0\u029f",
    "m": "\u1d0d",
    "n": "\u0274",
    "o": "\u1d0f\u1d11\uab3d",
    "p": "\u00fe\u01bf\u1d18",
    "q": "\ua7af",
    "r": "\u0280\uab47\uab48",
    "s": "\u01bd\ua731",
    "t": "\u1d1b",
    "u": "\u028b\u1d1c\ua79f\uab4e\uab52",
    "v": "\u1d20",
    "w": "\u026f\u1d21",
    "y": "\u0263\u028f\u1d8c\u1eff\uab5a",
    "z": "\u1d22",
    "'": "`\u00b4\u02b9\u02bb\u02bc\u02bd\u02be\u02c8\u02ca\u02cb\u02f4"
    "\u2018\u2019\u201b\u2032\u2035\ua78c",
    "-": "\u02d7\u2043\u2796",
}
_LOOK_ALIKES = str.maketrans(
    {letter: plain for plain, letters in _LOOKS_LIKE.items() for letter in letters}
)
_DOTTED_I = "i\u0307"  # Of the Turkish capital with a dot: the small letter has one anyway.


def key_name(name: str, earlier: int) -> str:
    """Return what the file of a member's key is called: ``bob``, or ``bob~1`` of its first one."""
    if not earlier:
        return name
    return f"{name}{EARLIER}{earlier}"


def holder_of(key: str) -> str:
    """Return the member whose key is called so."""
    name, mark, number = key.rpartition(EARLIER)
    if mark and number.isdecimal():
        return name
    return key


def name_of(client_id: int, names: Sequence[Mapping[int, str]]) -> str:
    """Return what the first of several tables calls a client; by its id where none has it."""
    for names_of_members in names:
        if client_id in names_of_members:
            return names_of_members[client_id]
    return f"client {client_id}"


def is_name(text: str) -> bool:
    """Return whether a member may be called so: 1 to 80 printable characters, some to be seen."""
    if not text.isprintable() or len(text) > MOST_LETTERS:
        return False
    return as_read(text) != ""


def require_names(names: Iterable[str], where: str) -> None:
    """Refuse names that a page or a terminal does not show as they are.

    Parameters
    ----------
    names : iterable of str
        Members' names.
    where : str
        What an error calls the place that lists them.

    Raises
    ------
    ConfigError
        Naming the first one that will not do.
    """
    for name in names:
        if not is_name(name):
            raise ConfigError(
                f"{where} {name!r:.90}; allowed: 1 to {MOST_LETTERS} printable characters"
            )


def as_read(name: str) -> str:
    """Return what a name is compared by: NFKC, without the difference of capitals.

    Full-width letters, ligatures and letters with a mark of their own are what they look like. What
    is not seen does not count, nor does how long a dash or a space is.
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    seen = _UNSEEN.sub("", unicodedata.normalize("NFKC", folded)).replace(_BLANK, " ")
    shown = ""
    for character in seen:
        if _is_dash(character):
            shown += "-"
        elif unicodedata.category(character) != "Cf":  # Cf: formats the text around it, unseen.
            shown += character
    return " ".join(shown.split())


def _as_looks(name: str) -> str:
    """Return what two names share whose letters look alike, such as a dotless i and i."""
    # An acute accent of its own is a space with an accent for NFKC.
    read = as_read(name.translate(_LOOK_ALIKES)).translate(_LOOK_ALIKES)
    return read.replace(_DOTTED_I, "i")


def _as_drawn(name: str) -> str:
    """Return what two names share that some typefaces draw alike, such as A1 and Al."""
    plain = unicodedata.normalize("NFKC", name.translate(_LOOK_ALIKES))
    return _as_looks(plain.translate(_DRAWN_ALIKE))


def _is_dash(character: str) -> bool:
    return unicodedata.category(character) == "Pd" or character == _MINUS


def mixed_scripts(name: str) -> str:
    """Return the word of a name that has letters of several scripts; empty: there is none.

    A Cyrillic letter among Latin ones looks like the Latin letter.
    """
    for word in as_read(name).split():
        scripts = {_script(letter) for letter in word if _is_letter(letter)}
        is_usual = any(scripts <= together for together in _WRITTEN_TOGETHER)
        if len(scripts) > 1 and not is_usual:
            return word
    return ""


def require_apart(names: Iterable[str], where: str) -> None:
    """Refuse names that a reader may take for one another.

    Parameters
    ----------
    names : iterable of str
        Of different members; a name may be there twice.
    where : str
        What an error calls the place that lists them.

    Raises
    ------
    ConfigError
        Naming the name with letters of several scripts, or the two that read alike.
    """
    names_as_they_look: dict[str, str] = {}
    names_as_drawn: dict[str, str] = {}
    for name in names:
        word = mixed_scripts(name)
        if word:
            raise ConfigError(
                f"{where} {name!r}: {_letters(word)} are of several scripts; allowed: one in a word"
            )
        for other in (
            names_as_they_look.setdefault(_as_looks(name), name),
            names_as_drawn.setdefault(_as_drawn(name), name),
        ):
            if other != name:
                raise ConfigError(
                    f"{where} {name!r} and {other!r} read alike; allowed: one of them"
                )


def _is_letter(character: str) -> bool:
    # Lm are marks that modify a letter, such as the long vowel of Katakana: of no script.
    return unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lo")


def _script(letter: str) -> str:
    """Return the script that the letter's name in Unicode begins with, such as LATIN."""
    return unicodedata.name(letter, "UNKNOWN").partition(" ")[0]


def _letters(word: str) -> str:
    """Return a word's letters with their scripts, in printable ASCII."""
    letters = filter(_is_letter, word)
    shown = [f"{letter!a} {_script(letter).capitalize()}" for letter in letters]
    return ", ".join(shown[:8])
