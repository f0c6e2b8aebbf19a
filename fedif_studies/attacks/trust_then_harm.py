"""Trust then harm: an attack on FedIF that first earns weight by influence, and then does harm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.settings import Setting


@dataclass
class TrustThenHarm(Colluder):
    r"""All accomplices send :math:`c \mu` for some rounds to earn weight, then :math:`-c \mu` once.

    :math:`\mu` is the mean of their honest updates. If their data are like the validation set,
    :math:`\mu` points down the validation loss, so :math:`c \mu` has about the largest influence
    :math:`-\langle u, g \rangle` of all updates of its length (g: the validation gradient), and
    influence grows with length. FedIF's weights are running means over rounds, so the accomplices
    still have weight in the round in which they do harm.

    Parameters
    ----------
    factor : float
        c > 0. If lengths are bounded, a factor beyond the bound gains nothing.
    earning : int
        The number of rounds before each harmful one, >= 1.
    """

    factor: Annotated[float, Setting("c: factor by which the mean is multiplied", gt=0)] = 2.0
    earning: Annotated[int, Setting("rounds of earning weight before each harm", ge=1)] = 3
    _rounds: int = field(default=0, init=False)

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the accomplices' updates ``[k, d]``, all the same."""
        harms = self._rounds % (self.earning + 1) == self.earning
        self._rounds += 1
        sent = self.factor * updates.mean(dim=0)
        if harms:
            sent = -sent
        return sent.expand_as(updates)
