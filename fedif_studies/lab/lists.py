"""Options that hold several values, divided by commas: what is not known is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from fedif_flower.errors import ConfigError, require

T = TypeVar("T")


def names_in(option: str, text: str, known: Collection[str]) -> list[str]:
    """Return the names of a list.

    Raises
    ------
    ConfigError
        If one is not among those that are known.
    """
    names = _parts(text)
    for name in names:
        require(name in known, option, name, ", ".join(known))
    return names


def counts_in(option: str, text: str) -> list[int]:
    """Return the counts of a list.

    Raises
    ------
    ConfigError
        If one is no integer >= 1.
    """
    counts = _numbers_in(option, text, int, "integers >= 1")
    for count in counts:
        require(count >= 1, option, count, "integers >= 1")
    return counts


def shares_in(option: str, text: str) -> list[float]:
    """Return the shares of a list.

    Raises
    ------
    ConfigError
        If one is no number in [0, 1].
    """
    shares = _numbers_in(option, text, float, "numbers in [0, 1]")
    for share in shares:
        require(0 <= share <= 1, option, share, "numbers in [0, 1]")
    return shares


def _numbers_in(option: str, text: str, number: Callable[[str], T], allowed: str) -> list[T]:
    try:
        return [number(part) for part in _parts(text)]
    except ValueError:
        raise ConfigError(f"{option} = {text!r}; allowed: {allowed}, divided by commas") from None


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]
