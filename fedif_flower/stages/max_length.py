"""A fixed bound on the length of updates, which needs no other update."""

from __future__ import annotations

import math

from torch import Tensor

from fedif_flower.errors import require
from fedif_flower.stages.stage import Stage


class MaxLength(Stage):
    r"""Shortens longer updates to a fixed length, each as it arrives.

    .. math:: \Delta_i \leftarrow \min\left(1, \frac{L}{\lVert \Delta_i \rVert}\right) \Delta_i

    Parameters
    ----------
    length : float
        L > 0, in the parameters' own unit.
    """

    def __init__(self, length: float) -> None:
        require(length > 0, "length", length, "> 0")
        self.length = self.max_length = length

    def __repr__(self) -> str:
        """Name the stage and its setting."""
        return f"MaxLength({self.length:g})"

    def needs_sight(self) -> str:
        """Return nothing: in masked rounds members shorten their updates themselves."""
        return ""

    def arrive(self, update: Tensor, squared_norm: float) -> float:
        """Shorten an update ``[d]`` in place; return its squared norm."""
        if squared_norm <= self.length**2:
            return squared_norm
        update.mul_(self.length / math.sqrt(squared_norm))
        return self.length**2
