"""Lists in a sentence: the first few of many values, and how many more there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def listed(values: Sequence[object], most: int = 10) -> str:
    """Return the first ``most`` values with commas, and how many more there are."""
    shown = ", ".join(str(value) for value in values[:most])
    num_more = len(values) - most
    if num_more > 0:
        return f"{shown} and {num_more} more"
    return shown


def enumerated(names: Iterable[str]) -> str:
    """Return the first ten names in alphabetical order with commas, and how many more there are."""
    return listed(sorted(names))
