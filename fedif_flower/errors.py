"""The errors this package raises, so that a caller can tell them apart."""

from __future__ import annotations

import sys
import traceback
from numbers import Integral
from pathlib import Path

_SHOWN_AT_MOST = 300  # Characters of a value.
_WORDS_AT_MOST = 120  # Characters of an error before its place: that has to fit into a reason.
# Top-level modules in which nobody looks for a mistake of an app's own.
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
    """A valuation was asked for something undefined, or a utility answered nonsense."""


class DivergedError(ValuationError):
    """The global model gives no finite validation gradient."""


class TrainingFailedError(FedIFError):
    """Too many clients failed for too many rounds in a row."""


class IncompleteRunError(FedIFError):
    """A run came to its end, but too little of what it asked for came."""

    exit_code = 3


class CheckpointError(FedIFError):
    """A checkpoint is damaged, or belongs to another configuration."""


class StatementError(FedIFError):
    """A statement, or a record that it rests on, is not what was signed."""


class EvidenceError(FedIFError):
    """A log, a signature or a receipt does not hold what it claims."""


class MaskingError(FedIFError, ValueError):
    """Numbers do not fit the ring, or a masked sum cannot be what it should be."""


class KeeperError(FedIFError):
    """The keeper of masks does not answer, refuses, or its answers contradict each other."""


class RefusedByMemberError(FedIFError):
    """What a member's own policy does not let in or out.

    Parameters
    ----------
    told : str
        The reason as the server may learn it: it holds nothing that the app wrote.
    detail : str
        What the member reads besides in its own log: names, figures.
    """

    def __init__(self, told: str, detail: str = "") -> None:
        words = f"{told}: {detail}" if detail else told
        super().__init__(words)
        self.told = told


def require(is_allowed: bool, key: str, value: object, allowed: str) -> None:
    """Raise ConfigError naming the key, its value and what is allowed, unless ``is_allowed``.

    Parameters
    ----------
    is_allowed : bool
        Whether the value is.
    key : str
        What the one who set it calls it.
    value : object
        What it was set to; of a long one the error has the beginning.
    allowed : str
        What would have been allowed, in words.
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
    """Return an error with the innermost line of an app's own code that it came through.

    ``KeyError('a') at my_rule.py:12 in MyRule.weigh``; the error alone where there is none. A file
    is named without its folder. It raises nothing: an error may be of somebody else's making.
    """
    try:
        words = repr(error)
    except Exception:  # An error of a user's own may fail to say what it is.
        words = type(error).__name__
    place = _place_in_app(error)
    if not place:
        return words
    if len(words) > _WORDS_AT_MOST:
        words = words[: _WORDS_AT_MOST - 3] + "..."
    return f"{words} at {place}"


def _place_in_app(error: BaseException) -> str:
    """Return the innermost line of an app's own code that an error came through; empty: none."""
    places: list[tuple[str, str]] = []  # The file, and what is shown, from the outermost on.
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__") or ""  # Code that was executed may have none.
        package, _, _ = str(module).partition(".")
        if package in _NOT_AN_APPS or package in sys.stdlib_module_names:
            continue
        file = frame.f_code.co_filename
        _, _, name = frame.f_code.co_qualname.rpartition("<locals>.")
        places.append((file, f"{Path(file).name}:{line} in {name}"))
    # An app may be installed as well: then there is nothing else.
    not_installed = [place for file, place in places if "site-packages" not in file]
    if not_installed:
        return not_installed[-1]
    return places[-1][1] if places else ""
