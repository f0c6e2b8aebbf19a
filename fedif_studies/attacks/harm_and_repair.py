"""Harm and repair: what is gained by a repair is as large as the harm before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour, ClientRound, Colluder
from fedif_flower.settings import Setting

_SENT = "sent"
Factor = Annotated[float, Setting("c: how many times the update is turned around", gt=0)]


def harm_and_repair(own: ClientRound, harm: Tensor) -> Tensor:
    """Return the parameters ``[d]`` to send: harmed in odd rounds, in the next what repairs it."""
    if own.server_round % 2:
        own.memory[_SENT] = harm
        return own.received + harm
    harm_before = own.memory.get(_SENT)
    if harm_before is None:
        return own.trained
    return own.received - harm_before.to(own.received)


@dataclass
class HarmAndRepair(Behaviour):
    r"""Sends :math:`-c u` in odd rounds, and in the next what takes that back.

    Parameters
    ----------
    factor : float
        c > 0.
    """

    factor: Factor = 4.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return its update turned round, or what it sent before with the other sign."""
        return harm_and_repair(own, -self.factor * (own.trained - own.received))


@dataclass
class HarmForRepair(Colluder):
    r"""The last harms in odd rounds, :math:`-c u`; the first repairs in even ones.

    The first adds to its honest update what takes the harm back; otherwise all are honest. The one
    that harms is paid nothing, which costs it one honest share, and the one that repairs is
    credited with a gain that there would not have been.

    Parameters
    ----------
    factor : float
        c > 0.
    """

    factor: Factor = 4.0
    _harm: Tensor | None = field(default=None, init=False)

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the updates ``[k, d]``."""
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
