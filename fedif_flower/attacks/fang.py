"""Fang's attack on means and medians by coordinate, with partial knowledge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.settings import Setting


@dataclass
class Fang(Colluder):
    r"""Each sends, for every coordinate, a value beyond the honest ones on the wrong side.

    .. math::
        v_j \sim U[\mu_j + c \sigma_j, \mu_j + (c + 1) \sigma_j] \text{ if } \mu_j < 0, \quad
        v_j \sim U[\mu_j - (c + 1) \sigma_j, \mu_j - c \sigma_j] \text{ otherwise}

    In coordinate j, honest updates move the model along :math:`\mu_j`; :math:`v_j` pulls against
    it.

    Parameters
    ----------
    distance : float
        c > 0, in standard deviations; the paper's 3.

    References
    ----------
    Fang et al., 2020 (Local model poisoning attacks), section 4.3, partial knowledge.
    """

    distance: Annotated[
        float, Setting("c: distance from the mean, in standard deviations", gt=0)
    ] = 3.0

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return updates ``[k, d]``; the random draws differ between accomplices."""
        mean = updates.mean(dim=0)  # [d]
        std = updates.std(dim=0, correction=0)  # [d]
        draws = torch.rand(updates.shape, generator=generator, dtype=updates.dtype)
        against = torch.where(mean < 0, 1.0, -1.0).to(updates)  # [d]
        return mean + against * std * (self.distance + draws.to(updates.device))
