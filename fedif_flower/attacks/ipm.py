"""Inner product manipulation: the accomplices' mean update with the opposite sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.settings import Setting


@dataclass
class InnerProductManipulation(Colluder):
    r"""All send their mean update with the opposite sign.

    .. math:: -\epsilon \mu

    With a small :math:`\epsilon` it lies among the honest updates. If there are enough attackers,
    the mean of all clients still has a negative inner product with the honest mean.

    Parameters
    ----------
    epsilon : float
        :math:`\epsilon` > 0.

    References
    ----------
    Xie et al., 2020 (Fall of empires), definition 5.
    """

    epsilon: Annotated[float, Setting("factor by which the reversed mean is multiplied", gt=0)] = (
        0.5
    )

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean times minus epsilon, ``[k, d]``, the same for all."""
        return (-self.epsilon * updates.mean(dim=0)).expand_as(updates)
