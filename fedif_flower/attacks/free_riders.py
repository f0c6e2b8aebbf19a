"""Free riders: clients that want the model, or a share of a reward, without any work.

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

# Keys of a client's memory: the parameters that it received when it last attacked, and that round.
_RECEIVED = "received"
_ROUND = "round"


def last_step(own: ClientRound) -> Tensor:
    """Return the mean global step ``[d]`` per round since the client last attacked.

    It is zero at the client's first attack. The received parameters are put into the client's
    memory for the next call.
    """
    received = own.received
    memory = own.memory
    before = memory.get(_RECEIVED, received).to(received.device)
    # At least 1: a round may be run again.
    rounds = max(own.server_round - int(memory.get(_ROUND, 0)), 1)
    memory[_RECEIVED] = received.clone()
    # An integer tensor: a float in half precision would round large numbers.
    memory[_ROUND] = torch.tensor(own.server_round)
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

    t is this round, and s is the last round before it in which this client attacked. So a client
    that is seldom drawn sends the mean step since then. At its first attack it knows no step, and
    sends the received model back.

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

    factor: Annotated[float, Setting("c: factor by which the step is multiplied", gt=0)] = 1.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters plus ``factor`` times the mean step."""
        return own.received + self.factor * last_step(own)


@dataclass
class ReturnWithNoise(Behaviour):
    r"""A free rider that sends the received model with noise as long as the last global step.

    .. math:: u \leftarrow c \lVert \Delta \rVert z / \lVert z \rVert, \quad z \sim N(0, I)

    with :math:`\Delta` the mean step that :class:`RepeatStep` repeats. The client does not train,
    so only the global step tells it which length is plausible for an update.

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
