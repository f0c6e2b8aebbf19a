"""Harm and repair: attacks that do harm, and are credited with repairing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour, ClientRound, Colluder
from fedif_flower.settings import Setting

_SENT = "sent"
Factor = Annotated[float, Setting("c: factor by which the reversed update is multiplied", gt=0)]


def harm_and_repair(own: ClientRound, harm: Tensor) -> Tensor:
    """Return the parameters ``[d]`` to send: with ``harm`` in odd rounds, repaired in even ones.

    A repair takes back the harm of the last odd round in which the member was asked. If it has no
    harm to repair, or has repaired it already, it is honest.
    """
    if own.server_round % 2:
        own.memory[_SENT] = harm
        return own.received + harm
    harm_before = own.memory.pop(_SENT, None)
    if harm_before is None:
        return own.trained
    return own.received - harm_before.to(own.received)


@dataclass
class HarmAndRepair(Behaviour):
    r"""Sends its update turned around, :math:`-c u`, in odd rounds, and takes it back in even ones.

    Parameters
    ----------
    factor : float
        c > 0.
    """

    factor: Factor = 4.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters less c times the update, or with the repair of that."""
        return harm_and_repair(own, -self.factor * (own.trained - own.received))


@dataclass
class HarmForRepair(Colluder):
    r"""One accomplice does harm, :math:`-c u`, and in the next round another repairs it.

    The last of the accomplices sends :math:`-c u` instead of its update u. In the next round, the
    first adds :math:`c u` to its honest update. Otherwise all are honest. The one that harms is
    paid nothing, which costs it one honest share, and the one that repairs is credited with a gain
    for which there would have been no need.

    Parameters
    ----------
    factor : float
        c > 0.
    """

    factor: Factor = 4.0
    _harm: Tensor | None = field(default=None, init=False)

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the accomplices' updates ``[k, d]``."""
        if len(updates) < 2:
            return updates
        sent = updates.clone()
        if self._harm is None:
            self._harm = -self.factor * updates[-1]
            sent[-1] = self._harm
        else:
            sent[0] -= self._harm
            self._harm = None
        return sent
