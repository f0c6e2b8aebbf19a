"""An adaptive attack on FedIF: earn weight by the influence it measures, then spend it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.settings import Setting


@dataclass
class TrustThenHarm(Colluder):
    r"""All send :math:`c \mu` for some of their rounds, and :math:`-c \mu` in the next.

    :math:`\mu` is the mean of what they trained honestly. Data like the validation set have it
    as their descent direction, so that of all updates of its length :math:`c \mu` has about the
    largest influence :math:`-\langle u, g \rangle` there, and influence grows with length. FedIF's
    weights are running means over rounds: what was earned pays for the harm.

    Parameters
    ----------
    factor : float
        c > 0. Where lengths are bounded, more than the bound gains nothing.
    earning : int
        Rounds >= 1 for every harmful one.
    """

    factor: Annotated[float, Setting("c: how many times the mean is sent", gt=0)] = 2.0
    earning: Annotated[int, Setting("rounds of earning weight before each harm", ge=1)] = 3
    _rounds: int = field(default=0, init=False)

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the updates ``[k, d]``, all the same."""
        harms = self._rounds % (self.earning + 1) == self.earning
        self._rounds += 1
        sent = self.factor * updates.mean(dim=0)
        if harms:
            sent = -sent
        return sent.expand_as(updates)
