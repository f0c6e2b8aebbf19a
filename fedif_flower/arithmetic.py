"""Small calculations that several packages need."""

from __future__ import annotations

from torch import Tensor


def share_of(count: int, share: float, at_least: int) -> int:
    """Return ``share``, in [0, 1], of ``count``, rounded down, but at least ``at_least``."""
    # 0.29 * 100 is 28.999... in floating point, and means 29.
    return max(int(share * count + 1e-9), at_least)


def all_finite(values: Tensor) -> bool:
    """Tell whether every value is finite."""
    # A finite sum says so, and is faster. An infinite sum may be an overflow of finite values.
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())
