"""Lists in a sentence: the first few of many values, and how many more there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def listed(values: Sequence[object], most: int = 10) -> str:
    """Return values in their order, with commas, and how many more there are beyond so many."""
    shown = ", ".join(str(value) for value in values[:most])
    num_more = len(values) - most
    if num_more > 0:
        return f"{shown} and {num_more} more"
    return shown


def enumerated(names: Iterable[str]) -> str:
    """Return names in order of their letters, with commas; beyond ten, how many more there are."""
    return listed(sorted(names))
