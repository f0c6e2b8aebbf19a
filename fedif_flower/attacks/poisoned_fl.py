"""PoisonedFL: all push along one random direction, round after round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.settings import Setting

# The paper's constants: the smallest factor, and what c is multiplied by after updates that the
# server seems to have filtered out.
_LEAST_FACTOR = 0.5
_FACTOR_AFTER_FILTERING = 0.7
_SIGNIFICANT_DEVIATIONS = 2.326  # Standard deviations of a one-sided test with p = 0.01.


@dataclass
class PoisonedFL(Colluder):
    r"""All send an update with random signs that never change, scaled by the last global step.

    .. math:: c \lVert \Delta \rVert\, v \odot s

    .. math:: v = \frac{\lvert \Delta - \lVert \Delta \rVert k / \lVert k \rVert \rvert}{
              \lVert \Delta - \lVert \Delta \rVert k / \lVert k \rVert \rVert}

    with :math:`\Delta` the last global step, k the update that they sent for that step, and s in
    :math:`\{-1, 1\}^d` drawn once. v says how much honest clients move each coordinate.

    Every ``patience`` rounds they test whether significantly more than half of the model's
    coordinates have moved along s since the last test (p = 0.01). If not, the server seems to
    filter their updates, and c becomes 0.7 c, but no less than 0.5. In their first round, when they
    know no step, they send their honest updates; afterwards they need none.

    Parameters
    ----------
    factor : float
        c > 0 at the beginning; 8 in the paper.
    patience : int
        Rounds between two tests, >= 1; 50 in the paper.

    References
    ----------
    Xie et al., "Model Poisoning Attacks to Federated Learning via Multi-Round Consistency", CVPR
    2025, arXiv:2404.15611. In the paper, fake clients take part in every round; here
    :math:`\Delta` is the change of the model since accomplices last took part.
    """

    factor: Annotated[
        float, Setting("c: length of the update, in lengths of the last global step", gt=0)
    ] = 8.0
    patience: Annotated[int, Setting("rounds until c is judged again", ge=1)] = 50
    _signs: Tensor | None = field(default=None, init=False)  # [d]: s.
    _received: Tensor | None = field(default=None, init=False)  # [d]: the last received model.
    _judged: Tensor | None = field(default=None, init=False)  # [d]: the model at the last test.
    _sent: Tensor | None = field(default=None, init=False)  # [d]: k.
    _rounds: int = field(default=0, init=False)  # How many rounds they have attacked in.

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the updates to send ``[k, d]``, the same for all; honest ones at first."""
        before = self._received
        self._received = received.clone()
        if before is None or self._judged is None or self._signs is None:
            drawn = torch.randint(2, received.shape, generator=generator)
            self._signs = (2 * drawn - 1).to(received)
            self._judged = received.clone()
            return updates
        self._rounds += 1
        if self._rounds % self.patience == 0:
            if not _follows(received - self._judged, self._signs):
                # A factor that was set below the least one stays as it is.
                least = min(self.factor, _LEAST_FACTOR)
                self.factor = max(_FACTOR_AFTER_FILTERING * self.factor, least)
            self._judged = received.clone()
        step = received - before
        sent_direction = torch.zeros_like(step)
        if self._sent is not None:
            sent_direction = _unit(self._sent)
        magnitudes = _unit((step - step.norm() * sent_direction).abs())
        self._sent = self.factor * step.norm() * magnitudes * self._signs
        return self._sent.expand_as(updates)


def _unit(vector: Tensor) -> Tensor:
    """Return a vector divided by its length; 0 stays 0."""
    unit: Tensor = vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)
    return unit


def _follows(change: Tensor, signs: Tensor) -> bool:
    """Tell whether significantly more than half of the coordinates moved along the signs."""
    along = int((change.sign() == signs).sum())
    d = len(signs)
    # By chance, their number is binomial with mean d / 2 and standard deviation sqrt(d) / 2.
    return along > d / 2 + _SIGNIFICANT_DEVIATIONS * math.sqrt(d) / 2
