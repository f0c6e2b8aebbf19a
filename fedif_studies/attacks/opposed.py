"""Opposed updates: attacks in which one accomplice adds what the others take away again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.settings import Setting


@dataclass
class OpposedUpdates(Colluder):
    r"""The first adds :math:`k v` to its honest update; the others together take it away.

    .. math:: u_1 \leftarrow u_1 + k v, \qquad u_i \leftarrow u_i - \frac{k}{n - 1} v
              \quad (i = 2 \ldots n), \qquad v = u_1

    If the n accomplices have the same weight, the model is the same as without the attack, and the
    first is credited with what the others lose. They gain if negative contributions count as 0.

    Parameters
    ----------
    factor : float
        k > 0.
    every : int
        They attack in one of so many rounds, >= 1, and are honest in the others.
    """

    factor: Annotated[float, Setting("k: the opposed parts' length, in those of v", gt=0)] = 10.0
    every: Annotated[int, Setting("in every so many rounds", ge=1)] = 1
    _rounds: int = field(default=0, init=False)
    _received: Tensor | None = field(default=None, init=False)

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the accomplices' updates ``[n, d]``; unchanged if there is only one accomplice."""
        # Called in every round, because a subclass may remember the model.
        direction = self.direction(received, updates)
        self._rounds += 1
        if len(updates) < 2 or self._rounds % self.every:
            return updates
        signs = torch.full((len(updates), 1), -1.0 / (len(updates) - 1)).to(updates)  # [k, 1]
        signs[0] = 1.0
        return updates + self.factor * signs * direction

    def direction(self, received: Tensor, updates: Tensor) -> Tensor:
        """Return v ``[d]``, the direction that is added and taken away."""
        return updates[0]


class OpposedSteps(OpposedUpdates):
    r"""As :class:`OpposedUpdates`, with the last global step :math:`v = w_{t-1} - w_{s-1}`.

    s is the last round before this round t in which accomplices took part. The step needs no data,
    and lowers the loss more than one member's own update does. In the first round there is no last
    step, and the accomplices are honest.
    """

    def direction(self, received: Tensor, updates: Tensor) -> Tensor:
        """Return the last global step, ``[d]``."""
        before = received if self._received is None else self._received
        self._received = received.clone()
        return received - before
