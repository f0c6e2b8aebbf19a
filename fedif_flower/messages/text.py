"""Text that a client or the operator wrote, made fit for terminals, tables and files."""

from __future__ import annotations

import re
from typing import Any

from fedif_flower.foreign import visible

MAX_LENGTH = 200
# Characters that a terminal or a page obeys instead of showing them: control characters, line
# ends, and marks that have no width or turn the direction of writing. The string is written as
# the inside of a regular expression's [...].
UNSHOWN = r"\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
_NOT_PRINTABLE = re.compile(r"[^ -~]")
# How Flower writes an exception that a client's app raised.
_RAISED = re.compile(r"<class '(?:[\w.]*\.)?(\w+)'>:<'(.*)'>", re.DOTALL)

MESSAGE_API = "only the message API is served (docs/tutorial/own-app.md)"
# A client app of Flower's older API looks for records whose names begin so, and fails without.
_OLDER = ("fitins.", "evaluateins.", "getparametersins.", "getpropertiesins.")


def printable(text: object, max_length: int = MAX_LENGTH) -> str:
    r"""Return ``text`` as printable ASCII of at most ``max_length`` characters.

    Every other character, be it a line break, an escape sequence's ``"\x1b"`` or half of a
    surrogate pair, becomes ``"?"``. Text that is too long is cut, and ends in ``"..."``.
    Printable, short text stays as it is.

    Parameters
    ----------
    text : object
        What a client sent, or an exception about it.
    max_length : int
        Longest result, in characters, >= 3.
    """
    return _NOT_PRINTABLE.sub("?", _short(text, max_length))


def one_line(text: object, max_length: int = MAX_LENGTH) -> str:
    r"""Return text of this side's own on one line, at most ``max_length`` characters long.

    Unlike :func:`printable` it keeps all letters: the operator's name for a member, or the system's
    name for a file, need not be ASCII. Line breaks, escape sequences, marks that turn the direction
    of writing and halves of surrogate pairs become ``"?"`` here too.
    """
    return visible(_short(text, max_length))


def reason_of(error: Any) -> str:
    """Return the reason in a Flower error; an app's exception reads ``ValueError: words``."""
    reason = str(error.reason)
    raised = _RAISED.fullmatch(reason)
    if raised:
        reason = f"{raised[1]}: {raised[2]}"
    if any(key in reason for key in _OLDER):
        older = "the client app is of Flower's older API (NumPyClient, client_fn)"
        return f"{older}; {MESSAGE_API}: {reason}"
    return reason


def _short(text: object, max_length: int) -> str:
    whole = str(text)
    if len(whole) <= max_length:
        return whole
    return whole[: max_length - 3] + "..."
