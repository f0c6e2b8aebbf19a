"""Names of members, and whether a reader could mistake one name for another.

A member whose name looks like another member's could be paid in the other's place. So names are
compared as people read them, and a word that mixes letters of two scripts is refused.

References
----------
https://www.unicode.org/Public/security/17.0.0/confusables.txt (UTS 39, 2025): look-alike letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from fedif_flower.errors import ConfigError

# Scripts that Japanese, Korean and Chinese mix within one word.
_WRITTEN_TOGETHER = (
    {"CJK", "HIRAGANA", "KATAKANA"},
    {"CJK", "HANGUL"},
    {"CJK", "BOPOMOFO"},
)
MOST_LETTERS = 80
# Stands in the name of a key's file between the member's name and the number of an earlier key.
EARLIER = "~"
# Invisible characters: Unicode's Default_Ignorable_Code_Point, for which programs draw nothing.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_BLANK = "\u2800"  # The Braille pattern without dots looks like a space.
_MINUS = "\u2212"
# Letters and digits that many typefaces draw alike: capital i, l, 1 and the bar; o and 0.
_DRAWN_ALIKE = str.maketrans({"I": "l", "1": "l", "|": "l", "0": "o"})
# Each value has the characters that look like its key: Latin letters, apostrophes and dashes.
# They are from Unicode's list, with three exceptions. Small capitals, kra (U+0138) and the dotless
# j were added here. Of the tone letter six (U+0185), Unicode lists only the capital.
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
# Lower case of the Turkish capital I with a dot; it looks like i, which has a dot anyway.
_DOTTED_I = "i\u0307"


def key_name(name: str, earlier: int) -> str:
    """Return the name of a key's file: ``bob`` for the present key, ``bob~1`` for the first key.

    Parameters
    ----------
    name : str
        The member's name.
    earlier : int
        The number of a key that the member used earlier, from 1; 0 for its present key.
    """
    if not earlier:
        return name
    return f"{name}{EARLIER}{earlier}"


def holder_of(key: str) -> str:
    """Return the name of the member whose key :func:`key_name` calls ``key``."""
    name, mark, number = key.rpartition(EARLIER)
    if mark and number.isdecimal():
        return name
    return key


def name_of(client_id: int, names: Sequence[Mapping[int, str]]) -> str:
    """Return a client's name in the first of ``names`` that has it, or else ``client ID``."""
    for names_of_members in names:
        if client_id in names_of_members:
            return names_of_members[client_id]
    return f"client {client_id}"


def is_name(text: str) -> bool:
    """Return whether a text may be a member's name: 1 to 80 printable characters, one visible."""
    if not text.isprintable() or len(text) > MOST_LETTERS:
        return False
    return as_read(text) != ""


def require_names(names: Iterable[str], where: str) -> None:
    """Raise ConfigError if a name is none that :func:`is_name` allows.

    A page or a terminal could show such a name as something else, or not at all.

    Parameters
    ----------
    names : iterable of str
        Members' names.
    where : str
        The place that lists them; the error message begins with it.

    Raises
    ------
    ConfigError
        If a name is not allowed. The message has the first one.
    """
    for name in names:
        if not is_name(name):
            raise ConfigError(
                f"{where} {name!r:.90}; allowed: 1 to {MOST_LETTERS} printable characters"
            )


def as_read(name: str) -> str:
    """Return the form in which names are compared: NFKC and casefolded.

    So a full-width letter equals the plain letter, a ligature equals its letters, and a letter
    followed by a combining mark equals the letter that has the mark. Invisible characters are
    dropped, all dashes become ``-``, and blanks become single spaces.
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    seen = _UNSEEN.sub("", unicodedata.normalize("NFKC", folded)).replace(_BLANK, " ")
    shown = ""
    for character in seen:
        if _is_dash(character):
            shown += "-"
        elif unicodedata.category(character) != "Cf":  # Cf: invisible formatting characters.
            shown += character
    return " ".join(shown.split())


def _as_looks(name: str) -> str:
    """Return a form in which names with look-alike letters are equal, such as dotless i and i."""
    # Translate before NFKC as well: NFKC would turn a lone acute accent into a space with a mark.
    read = as_read(name.translate(_LOOK_ALIKES)).translate(_LOOK_ALIKES)
    return read.replace(_DOTTED_I, "i")


def _as_drawn(name: str) -> str:
    """Return a form in which names that some typefaces draw alike are equal, such as A1 and Al."""
    plain = unicodedata.normalize("NFKC", name.translate(_LOOK_ALIKES))
    return _as_looks(plain.translate(_DRAWN_ALIKE))


def _is_dash(character: str) -> bool:
    return unicodedata.category(character) == "Pd" or character == _MINUS


def mixed_scripts(name: str) -> str:
    """Return the first word of a name that mixes letters of several scripts; empty if none does.

    A Cyrillic letter among Latin letters, for example, looks like one of them.
    """
    for word in as_read(name).split():
        scripts = {_script(letter) for letter in word if _is_letter(letter)}
        is_usual = any(scripts <= together for together in _WRITTEN_TOGETHER)
        if len(scripts) > 1 and not is_usual:
            return word
    return ""


def require_apart(names: Iterable[str], where: str) -> None:
    """Raise ConfigError if a reader could mistake one name for another.

    Parameters
    ----------
    names : iterable of str
        Members' names. The same name may stand there twice.
    where : str
        The place that lists them; the error message begins with it.

    Raises
    ------
    ConfigError
        If a word of a name mixes letters of several scripts, or two different names read alike.
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
    # Lm is left out: its marks modify a letter, as Katakana's long vowel does, and have no script.
    return unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lo")


def _script(letter: str) -> str:
    """Return a letter's script, such as LATIN: the first word of the letter's Unicode name."""
    return unicodedata.name(letter, "UNKNOWN").partition(" ")[0]


def _letters(word: str) -> str:
    """Return the first eight letters of a word with their scripts, in printable ASCII."""
    letters = filter(_is_letter, word)
    shown = [f"{letter!a} {_script(letter).capitalize()}" for letter in letters]
    return ", ".join(shown[:8])
