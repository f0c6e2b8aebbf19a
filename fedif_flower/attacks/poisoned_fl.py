"""PoisonedFL: all push along one random direction, round after round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.settings import Setting

# The paper's: the smallest factor, and what a factor is multiplied by that was filtered.
_LEAST_FACTOR = 0.5
_REDUCTION = 0.7
_SIGNIFICANT = 2.326  # Standard deviations: one-sided, p = 0.01.


@dataclass
class PoisonedFL(Colluder):
    r"""All send what the last step was like, with signs that never change.

    .. math:: c \lVert \Delta \rVert\, v \odot s

    .. math:: v = \frac{\lvert \Delta - \lVert \Delta \rVert k / \lVert k \rVert \rvert}{
              \lVert \Delta - \lVert \Delta \rVert k / \lVert k \rVert \rVert}

    with :math:`\Delta` the last global step, k what they sent for it, and s drawn once. Every
    ``patience`` rounds they look whether significantly more than half of the model's coordinates
    have moved along s since (p = 0.01); if not, they were filtered, and c becomes 0.7 c, but no
    less than 0.5. They need no honest update; before the first step they are honest.

    Parameters
    ----------
    factor : float
        c > 0 at the beginning; the paper's 8.
    patience : int
        Rounds, >= 1; the paper's 50.

    References
    ----------
    Xie et al., "Model Poisoning Attacks to Federated Learning via Multi-Round Consistency", CVPR
    2025, arXiv:2404.15611. It has fake clients that are in every round; here the global step is
    that since the accomplices last took part.
    """

    factor: Annotated[float, Setting("c: in lengths of the last global step", gt=0)] = 8.0
    patience: Annotated[int, Setting("rounds until c is judged again", ge=1)] = 50
    _signs: Tensor | None = field(default=None, init=False)  # [d]
    _received: Tensor | None = field(default=None, init=False)  # [d]
    _judged: Tensor | None = field(default=None, init=False)  # [d]: where c was judged last.
    _sent: Tensor | None = field(default=None, init=False)  # [d]
    _rounds: int = field(default=0, init=False)

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the updates ``[k, d]``, all the same."""
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
                self.factor = max(_REDUCTION * self.factor, least)
            self._judged = received.clone()
        step = received - before
        sent_direction = torch.zeros_like(step)
        if self._sent is not None:
            sent_direction = _unit(self._sent)
        magnitudes = _unit((step - step.norm() * sent_direction).abs())
        self._sent = self.factor * step.norm() * magnitudes * self._signs
        return self._sent.expand_as(updates)


def _unit(vector: Tensor) -> Tensor:
    unit: Tensor = vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)
    return unit


def _follows(change: Tensor, signs: Tensor) -> bool:
    """Tell whether more coordinates moved along the signs than chance explains."""
    along = int((change.sign() == signs).sum())
    d = len(signs)
    return along > d / 2 + _SIGNIFICANT * math.sqrt(d) / 2
