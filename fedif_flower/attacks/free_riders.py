"""Free riders: clients that want a share of the model, or of a reward, without any work.

They send buffers, such as batch norm's statistics, as they received them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour, ClientRound
from fedif_flower.attacks.random_update import gaussian_of_length
from fedif_flower.settings import Setting

# What a client's memory has between its rounds.
_RECEIVED = "received"
_ROUND = "round"


def last_step(own: ClientRound) -> Tensor:
    """Return the mean global step ``[d]`` since the client last attacked; zero before that."""
    received = own.received
    memory = own.memory
    before = memory.get(_RECEIVED, received).to(received.device)
    rounds = own.server_round - int(memory.get(_ROUND, 0))
    memory[_RECEIVED] = received.clone()
    memory[_ROUND] = torch.tensor(own.server_round)  # Half precision would round it.
    return (received - before) / rounds


class ReturnModel(Behaviour):
    """A free rider that sends the received model back."""

    sends_buffers = False

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters."""
        return own.received


@dataclass
class RepeatStep(Behaviour):
    r"""A free rider that sends the last step again.

    .. math:: c (w_{t-1} - w_{s-1}) / (t - s)

    s is the last round that this client attacked in, so that a client that is seldom drawn sends
    the mean step since then. At its first attack it knows none, and sends the model back.

    Parameters
    ----------
    factor : float
        c > 0.

    References
    ----------
    Lin et al., 2019 (Free-riders in federated learning: attacks and defenses), delta weights.
    """

    remembers = True
    sends_buffers = False

    factor: Annotated[float, Setting("c: how many times the step is sent", gt=0)] = 1.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters, one mean step further."""
        return own.received + self.factor * last_step(own)


@dataclass
class ReturnWithNoise(Behaviour):
    r"""A free rider that sends the received model and noise as long as the last global step.

    .. math:: u \leftarrow c \lVert \Delta \rVert z / \lVert z \rVert, \quad z \sim N(0, I)

    with :math:`\Delta` the step that :class:`RepeatStep` sends. It trains nothing, so the global
    step is all that it knows of a plausible length.

    Parameters
    ----------
    factor : float
        c > 0.

    References
    ----------
    Fraboni et al., 2021 (Free-rider attacks on model aggregation in federated learning),
    disguised free riders.
    """

    remembers = True
    sends_buffers = False

    factor: Annotated[
        float, Setting("c: the length of the noise, in lengths of the step", gt=0)
    ] = 1.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters plus noise."""
        length = self.factor * last_step(own).norm()
        return own.received + gaussian_of_length(own.received, length, own.generator)
