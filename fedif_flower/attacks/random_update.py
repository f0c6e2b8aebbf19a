"""Random update: noise as long as an honest update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour, ClientRound
from fedif_flower.settings import Setting


def gaussian_of_length(like: Tensor, length: Tensor | float, generator: torch.Generator) -> Tensor:
    r"""Return :math:`\ell\, z / \lVert z \rVert` with :math:`z \sim N(0, I)`.

    Parameters
    ----------
    like : Tensor
        ``[d]``: the result has its shape, dtype and device.
    length : Tensor or float
        :math:`\ell`.
    generator : torch.Generator
        On the CPU.
    """
    noise = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
    return noise.mul_(length / noise.norm().clamp_min(torch.finfo(noise.dtype).tiny))


@dataclass
class RandomUpdate(Behaviour):
    r"""Sends Gaussian noise instead of its update.

    .. math:: u \leftarrow c \lVert u \rVert z / \lVert z \rVert, \quad z \sim N(0, I)

    Parameters
    ----------
    factor : float
        c > 0: the length, in lengths of the client's honest update.
    """

    factor: Annotated[
        float, Setting("c: the length, in lengths of the client's honest update", gt=0)
    ] = 1.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters plus noise."""
        length = self.factor * (own.trained - own.received).norm()
        return own.received + gaussian_of_length(own.received, length, own.generator)
