"""Small sums that several rooms do, each in one way."""

from __future__ import annotations

from torch import Tensor


def share_of(count: int, share: float, at_least: int) -> int:
    """Return how many a share of so many is, in [0, 1], or the least if that is more."""
    # 0.29 * 100 is 28.999...: the share is meant, not its rounding error.
    return max(int(share * count + 1e-9), at_least)


def all_finite(values: Tensor) -> bool:
    """Tell whether every value is finite: they all are where their sum is, which is read faster."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())
