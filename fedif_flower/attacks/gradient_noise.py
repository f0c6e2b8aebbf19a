"""Gradient noise: a client adds Gaussian noise to the parameters that it sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour, ClientRound
from fedif_flower.settings import Setting


@dataclass
class GradientNoise(Behaviour):
    r"""Adds Gaussian noise to its trained parameters.

    .. math:: w + \sigma z, \quad z \sim N(0, I)

    Parameters
    ----------
    std : float
        :math:`\sigma` >= 0, in units of the parameters.
    """

    std: Annotated[
        float, Setting("standard deviation of the noise on the returned parameters", ge=0)
    ] = 0.1

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the trained parameters plus noise."""
        noise = torch.randn(own.trained.shape, generator=own.generator, dtype=own.trained.dtype)
        return own.trained + noise.to(own.trained.device).mul_(self.std)
