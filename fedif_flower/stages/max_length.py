"""A fixed bound on the length of updates, which needs no other update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedif_flower.settings import Setting
from fedif_flower.stages.stage import Stage


@dataclass(eq=False)
class MaxLength(Stage):
    r"""Shortens longer updates to a fixed length, each as it arrives.

    .. math:: \Delta_i \leftarrow \min\left(1, \frac{L}{\lVert \Delta_i \rVert}\right) \Delta_i

    Parameters
    ----------
    max_length : float
        L > 0, in the parameters' own unit.
    """

    needs_lengths_alone = True  # In masked rounds members shorten their updates themselves.

    max_length: Annotated[float, Setting("longer updates are shortened to it", gt=0)]

    def arrive(self, update: Tensor, squared_norm: float) -> float:
        """Shorten an update ``[d]`` in place; return its squared norm."""
        if squared_norm <= self.max_length**2:
            return squared_norm
        update.mul_(self.max_length / math.sqrt(squared_norm))
        return self.max_length**2
