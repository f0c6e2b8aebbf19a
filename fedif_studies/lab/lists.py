"""Command-line options that hold several values, divided by commas."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import typer

from fedif_flower.errors import ConfigError, require

T = TypeVar("T")


def names_in(option: str, text: str, allowed: Collection[str]) -> list[str]:
    """Return the names in an option's text.

    Raises
    ------
    ConfigError
        If a name is not in ``allowed``.
    """
    names = _parts(text)
    for name in names:
        require(name in allowed, option, name, ", ".join(allowed))
    return names


def counts_in(option: str, text: str) -> list[int]:
    """Return the counts in an option's text.

    Raises
    ------
    ConfigError
        If a count is not an integer >= 1.
    """
    counts = _numbers_in(option, text, int, "integers >= 1")
    for count in counts:
        require(count >= 1, option, count, "integers >= 1")
    return counts


def sizes_in(text: str, usual: Sequence[int], most: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the sizes of held-out sets that a study measures, by data set.

    Where a data set is too small for a usual size, a printed line says so.

    Parameters
    ----------
    text : str
        The option ``sizes``. If it is empty, each data set has all usual sizes that it allows.
    usual : sequence of int
        The usual sizes.
    most : mapping of str to int
        The data sets, and the largest size that each allows.

    Raises
    ------
    ConfigError
        If the option asks for a size that a data set does not allow.
    """
    sizes: dict[str, list[int]] = {}
    for data, limit in most.items():
        if text:
            sizes[data] = counts_in("sizes", text)
            for size in sizes[data]:
                require(size <= limit, "sizes", size, f"1 to {limit} of {data}")
            continue
        sizes[data] = [size for size in usual if size <= limit]
        too_large = [str(size) for size in usual if size > limit]
        if too_large:
            sizes_left_out = ", ".join(too_large)
            typer.echo(f"{data}: sizes {sizes_left_out} are left out; allowed: 1 to {limit}")
    return sizes


def shares_in(option: str, text: str) -> list[float]:
    """Return the shares in an option's text.

    Raises
    ------
    ConfigError
        If a share is not a number in [0, 1].
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
