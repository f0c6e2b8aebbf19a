r"""The descent lemma's bound on the loss after one step, with which FedIF's Theorem 1 begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 1e-6  # Relative to the loss: a mean of many float32 losses is accurate to this.


@dataclass(frozen=True)
class StepDescent:
    r"""What the gradients g at both ends of a step s from the model w say about the step.

    Attributes
    ----------
    slope : float
        :math:`a = \langle g(w), s \rangle`, in nats: by how much the loss would change over the
        step if it were linear. Negative: the step goes downhill.
    smoothness : float
        :math:`L = \lVert g(w + s) - g(w) \rVert / \lVert s \rVert`, how much the gradient changed
        for each unit of the step's length; 0 for a step of length 0.
    length : float
        :math:`\lVert s \rVert`.
    """

    slope: float
    smoothness: float
    length: float

    def bound(self) -> float:
        r"""Return :math:`a + L \lVert s \rVert^2 / 2`, an upper bound on the change of the loss.

        It is a bound where the gradient nowhere along the step changes faster than L says, which is
        the mean rate between the ends (Nesterov, *Introductory Lectures on Convex Optimization*,
        2004, lemma 1.2.3).
        """
        return self.slope + self.smoothness * self.length**2 / 2

    def is_held(self, loss_before: float, loss_after: float) -> bool:
        """Tell whether the loss rose by no more than the bound, up to the rounding of losses."""
        rounding = ROUNDING * max(abs(loss_before), abs(loss_after))
        return loss_after - loss_before <= self.bound() + rounding


def descent_of(gradient_before: Tensor, gradient_after: Tensor, step: Tensor) -> StepDescent | None:
    """Return what the gradients at both ends say about a step, ``[d]`` each.

    ``None`` where the slope, the smoothness or the length is not finite.
    """
    before = gradient_before.to(step.device)
    after = gradient_after.to(step.device)
    slope = float((before * step).sum(dtype=torch.float64))
    length = _norm(step)
    smoothness = _norm(after - before) / length if length else 0.0
    if not (math.isfinite(slope) and math.isfinite(smoothness) and math.isfinite(length)):
        return None
    return StepDescent(slope, smoothness, length)


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
