"""Sybils: one owner behind several identities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.settings import Setting


@dataclass
class Sybils(Colluder):
    r"""All identities of one owner send the honest update of the first, to gain weight and reward.

    .. math:: u_i \leftarrow u_1 + c \lVert u_1 \rVert z_i / \lVert z_i \rVert,
        \quad z_i \sim N(0, I)

    Parameters
    ----------
    noise : float
        c >= 0: the length of the noise that hides the copies, in multiples of the update's length.
    """

    noise: Annotated[
        float,
        Setting("c: length of the noise that hides the copies, in lengths of the update", ge=0),
    ] = 0.0

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the owner's update ``[k, d]``, once for each identity, with noise."""
        update = updates[0]  # [d]
        noise = torch.randn(updates.shape, generator=generator, dtype=updates.dtype)  # [k, d]
        noise *= self.noise * update.norm().cpu() / noise.norm(dim=1, keepdim=True)
        return update + noise.to(update.device)
