"""How far apart results may lie that differ by nothing but the order of their sums.

No two processors sum alike: vector units, threads and libraries each take another order. A
tolerance is therefore a multiple of the rounding of the numbers, never a number that fitted once.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A sum of n terms errs by n roundings at the most. A step through a model is a few such sums, of
# some hundred terms each.
ROUNDINGS_PER_STEP = 1000
# Where a ReLU's input is zero up to rounding, one processor passes the gradient on and another does
# not. In float32 that happens now and then, and changes a step by one unit's share for one example.
SWITCHED_UNIT = 1e-2


def rounding(dtype: torch.dtype, steps: int = 1) -> float:
    """Return the relative difference that rounding makes in ``steps`` steps."""
    return ROUNDINGS_PER_STEP * steps * torch.finfo(dtype).eps


def assert_same_step(actual: Tensor, expected: Tensor, start: Tensor, tolerance: float) -> None:
    """Two ways from ``start`` end in one place: no further apart than that share of the way."""
    apart, way = (actual - expected).norm(), (expected - start).norm()
    assert way > 0
    assert apart <= tolerance * way, f"{float(apart / way):.1e} of the way apart"
