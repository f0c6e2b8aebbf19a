"""Gradient noise: a client sends its parameters with Gaussian noise on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour, ClientRound
from fedif_flower.settings import Setting


def add_gaussian(params: Tensor, std: float, generator: torch.Generator) -> Tensor:
    r"""Return :math:`w + \sigma z` ``[d]`` with :math:`z \sim N(0, I)`.

    Parameters
    ----------
    params : Tensor
        ``[d]``: w.
    std : float
        :math:`\sigma` >= 0, in units of the parameters.
    generator : torch.Generator
        On the CPU.
    """
    noise = torch.randn(params.shape, generator=generator, dtype=params.dtype)
    return params + noise.to(params.device).mul_(std)


@dataclass
class GradientNoise(Behaviour):
    """Adds Gaussian noise to all trainable parameters every time it has trained.

    Parameters
    ----------
    std : float
        Standard deviation of the noise, >= 0.
    """

    std: Annotated[
        float, Setting("standard deviation of the noise on the returned parameters", ge=0)
    ] = 0.1

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the parameters with noise on them (see :func:`add_gaussian`)."""
        return add_gaussian(own.trained, self.std, own.generator)
