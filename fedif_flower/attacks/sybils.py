"""Sybils: one owner behind several identities."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.settings import Setting


class Sybils(Colluder):
    r"""All identities send the honest update of the first, to gain weight and reward for one.

    .. math:: u_i \leftarrow u_1 + c \lVert u_1 \rVert z_i / \lVert z_i \rVert,
        \quad z_i \sim N(0, I)

    Parameters
    ----------
    noise : float
        c >= 0: the length of noise that hides the copies, in lengths of the update.
    """

    def __init__(
        self,
        noise: Annotated[
            float,
            Setting("c: length of the noise that hides the copies, in lengths of the update", ge=0),
        ] = 0.0,
    ) -> None:
        self.noise = noise

    def collude(
        self,
        received: Tensor,  # noqa: ARG002
        updates: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the owner's update ``[k, d]``, once per identity."""
        own = updates[0]  # [d]
        noise = torch.randn(updates.shape, generator=generator, dtype=updates.dtype)
        noise *= self.noise * own.norm().cpu() / noise.norm(dim=1, keepdim=True)
        return own + noise.to(own.device)
