"""The last global steps, which everybody knows: an orthonormal basis of what they span."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedif_flower.valuation.influence import project_updates

REMEMBERED = 3  # Steps; further back, a step says little about where the loss falls.
_NEW = 1e-3  # Of a step's length: what is left of it beside newer ones and counts as a direction.


class PastSteps:
    """The last global steps, the newest first, and a basis of their span.

    Parameters
    ----------
    steps : sequence of Tensor
        ``[d]`` each, the newest first; those of length 0 are left out.
    """

    def __init__(self, steps: Sequence[Tensor] = ()) -> None:
        self.steps = tuple(steps)[:REMEMBERED]
        basis = orthonormal(self.steps, _NEW)
        self.basis = basis.to(self.steps[0]) if self.steps else basis

    def after(self, step: Tensor) -> PastSteps:
        """Return the last steps after one more ``[d]``; one of length 0 changes nothing."""
        return PastSteps((step, *self.steps)) if bool(step.any()) else self

    def shares(self, updates: Tensor) -> Tensor:
        """Return the coordinates of updates ``[m, d]`` in the basis: ``[m, k]``, float64, CPU."""
        if not len(self.basis):
            return torch.zeros(len(updates), 0, dtype=torch.float64)
        found = [-project_updates(updates, unit.to(updates.device)).inner for unit in self.basis]
        return torch.stack(found, dim=1).cpu()


def orthonormal(vectors: Sequence[Tensor], least: float) -> Tensor:
    """Return an orthonormal basis ``[k, d]`` of vectors' span, by Gram and Schmidt, in float64.

    Parameters
    ----------
    vectors : sequence of Tensor
        ``[d]`` each, finite.
    least : float
        A vector of which the earlier ones leave no more than so much of its length adds no
        direction; without any, k = 0.
    """
    basis: list[Tensor] = []
    for vector in vectors:
        rest = vector.double()
        for unit in (*basis, *basis):  # Twice, since rounding leaves some of it the first time.
            rest = rest - (rest @ unit) * unit
        length = torch.linalg.vector_norm(rest)
        if length > least * torch.linalg.vector_norm(vector.double()):
            basis.append(rest / length)
    if not basis:
        return torch.zeros(0, len(vectors[0]) if vectors else 0, dtype=torch.float64)
    return torch.stack(basis)
