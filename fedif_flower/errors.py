"""The errors this package raises, so that a caller can tell them apart."""

from __future__ import annotations

import sys
import traceback
from numbers import Integral
from pathlib import Path

_SHOWN_AT_MOST = 300  # Characters of a value in an error message.
# Characters of an error's text before its place in the code: both have to fit into a reason, which
# is cut at 200 characters.
_WORDS_AT_MOST = 120
# Top-level modules that are no part of an app: an error is not looked for in them.
_NOT_AN_APPS = frozenset(
    {
        "PIL",
        "datasets",
        "fedif_consortium",
        "fedif_flower",
        "fedif_studies",
        "flwr",
        "flwr_datasets",
        "matplotlib",
        "numpy",
        "pandas",
        "peft",
        "pyarrow",
        "pydantic",
        "ray",
        "scipy",
        "sklearn",
        "torch",
        "torchvision",
        "transformers",
    }
)


class FedIFError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(FedIFError, ValueError):
    """A run-config or node-config key is unknown, or its value is not allowed."""


class DataError(FedIFError):
    """A data set is missing, unreadable or does not fit the configuration."""


class StorageError(FedIFError):
    """A result cannot be written: the disk is full, say, or the folder is in use by another run."""


class ReplyError(FedIFError):
    """A client's reply failed screening; the message is the reason that is recorded."""


class ValuationError(FedIFError, ValueError):
    """A valuation was asked for something undefined, or a utility returned an invalid value."""


class DivergedError(ValuationError):
    """The global model gives no finite validation gradient."""


class TrainingFailedError(FedIFError):
    """Too many clients failed for too many rounds in a row."""


class IncompleteRunError(FedIFError):
    """A run came to its end, but too much of what it asked for is missing."""

    exit_code = 3  # Of the command ``fedif``; other errors have 1.


class CheckpointError(FedIFError):
    """A checkpoint is damaged, or belongs to another configuration."""


class StatementError(FedIFError):
    """A statement, or a record that it is based on, is not what was signed."""


class EvidenceError(FedIFError):
    """A log, a signature or a receipt is not valid."""


class MaskingError(FedIFError, ValueError):
    """Numbers do not fit into the ring of masked sums, or a masked sum is not plausible."""


class KeeperError(FedIFError):
    """The keeper of masks does not answer, refuses, or its answers contradict each other."""


class RefusedByMemberError(FedIFError):
    """A member's own policy does not allow a message in or out.

    Parameters
    ----------
    reason : str
        The reason that the server may learn. It contains nothing that the app wrote.
    detail : str
        What the member's own log says as well, such as names and figures.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        words = f"{reason}: {detail}" if detail else reason
        super().__init__(words)
        self.reason = reason


def require(is_allowed: bool, key: str, value: object, allowed: str) -> None:
    """Raise ConfigError naming the key, its value and what is allowed, unless ``is_allowed``.

    Parameters
    ----------
    is_allowed : bool
        Whether the value is allowed.
    key : str
        The setting's name, as the person who set it knows it.
    value : object
        The value; the error has only the beginning of a long one.
    allowed : str
        Which values are allowed, in words.
    """
    if not is_allowed:
        shown = repr(value)
        if len(shown) > _SHOWN_AT_MOST:
            shown = shown[: _SHOWN_AT_MOST - 3] + "..."
        raise ConfigError(f"{key} = {shown}; allowed: {allowed}")


def is_count(value: object, least: int = 0) -> bool:
    """Tell whether a value is an integer >= ``least``."""
    return isinstance(value, Integral) and int(value) >= least


def with_place(error: BaseException) -> str:
    """Return an error's text, with the innermost line of an app's own code in its traceback.

    An example is ``KeyError('a') at my_rule.py:12 in MyRule.weigh``. Files are named without their
    folder. Without such a line it is the error alone. This function raises nothing, whatever the
    error is.
    """
    try:
        words = repr(error)
    except Exception:  # The __repr__ of a user's own error may raise.
        words = type(error).__name__
    place = _place_in_app(error)
    if not place:
        return words
    if len(words) > _WORDS_AT_MOST:
        words = words[: _WORDS_AT_MOST - 3] + "..."
    return f"{words} at {place}"


def _place_in_app(error: BaseException) -> str:
    """Return the innermost line of an app's own code in an error's traceback; empty: none."""
    places: list[tuple[str, str]] = []  # The file, and what is shown; the outermost call first.
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__") or ""  # Code run by exec() may have no name.
        package, _, _ = str(module).partition(".")
        if package in _NOT_AN_APPS or package in sys.stdlib_module_names:
            continue
        file = frame.f_code.co_filename
        _, _, name = frame.f_code.co_qualname.rpartition("<locals>.")
        places.append((file, f"{Path(file).name}:{line} in {name}"))
    # Code outside of site-packages comes first. But an app may be installed there itself.
    not_installed = [place for file, place in places if "site-packages" not in file]
    if not_installed:
        return not_installed[-1]
    return places[-1][1] if places else ""
