"""Attacks on the update: a client sends other parameters than it trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour, ClientRound
from fedif_flower.attacks.label_noise import LabelNoise
from fedif_flower.settings import Setting

_RECEIVED, _ROUND = "received", "round"
Factor = Annotated[float, Setting("c: how many times the update is sent", gt=0)]


def add_gaussian(params: Tensor, std: float, generator: torch.Generator) -> Tensor:
    r"""Return :math:`w + \sigma z` ``[d]`` with :math:`z \sim N(0, I)`.

    Parameters
    ----------
    params : Tensor
        ``[d]``: w.
    std : float
        :math:`\sigma` >= 0, in units of the parameters.
    generator : torch.Generator
        On the CPU.
    """
    noise = torch.randn(params.shape, generator=generator, dtype=params.dtype)
    return params + noise.to(params.device).mul_(std)


def gaussian_of_length(like: Tensor, length: Tensor | float, generator: torch.Generator) -> Tensor:
    r"""Return :math:`\ell\, z / \lVert z \rVert` with :math:`z \sim N(0, I)`."""
    noise = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
    return noise.mul_(length / noise.norm().clamp_min(torch.finfo(noise.dtype).tiny))


def scaled(own: ClientRound, factor: float) -> Tensor:
    r"""Return :math:`w_{t-1} + c (w_i - w_{t-1})`, ``[d]``."""
    return own.received + factor * (own.trained - own.received)


def last_step(own: ClientRound) -> Tensor:
    """Return the mean global step ``[d]`` since the client's last round; zero at its first."""
    received, memory = own.received, own.memory
    before = memory.get(_RECEIVED, received).to(received.device)
    rounds = own.server_round - int(memory.get(_ROUND, received.new_zeros(())))
    memory[_RECEIVED] = received.clone()
    memory[_ROUND] = received.new_full((), own.server_round)
    return (received - before) / rounds


@dataclass
class GradientNoise(Behaviour):
    """Adds Gaussian noise to all trainable parameters every time it has trained.

    Parameters
    ----------
    std : float
        Standard deviation of the noise, >= 0.
    """

    std: Annotated[
        float, Setting("standard deviation of the noise on the returned parameters", ge=0)
    ] = 0.1

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the parameters with noise on them (see :func:`add_gaussian`)."""
        return add_gaussian(own.trained, self.std, own.generator)


@dataclass
class SignFlip(Behaviour):
    r"""Sends the update turned around: :math:`u \leftarrow -c\,u`.

    Parameters
    ----------
    factor : float
        c > 0; 1 keeps the length.

    References
    ----------
    Li et al., 2019 (RSA: Byzantine-robust stochastic aggregation), section 5.
    """

    factor: Annotated[float, Setting("c: 1 keeps the length", gt=0)] = 1.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return :math:`w_{t-1} - c (w_i - w_{t-1})`."""
        return scaled(own, -self.factor)


@dataclass
class RandomUpdate(Behaviour):
    r"""Sends noise: :math:`u \leftarrow c \lVert u \rVert z / \lVert z \rVert, z \sim N(0, I)`.

    Parameters
    ----------
    factor : float
        c > 0: the length, in lengths of the client's honest update.
    """

    factor: Annotated[
        float, Setting("c: the length, in lengths of the client's honest update", gt=0)
    ] = 1.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters plus noise."""
        length = self.factor * (own.trained - own.received).norm()
        return own.received + gaussian_of_length(own.received, length, own.generator)


@dataclass
class HonestScaling(Behaviour):
    r"""Trains honestly and sends :math:`c\,u`: to gain weight, or by a mistake of units.

    Parameters
    ----------
    factor : float
        c > 0.
    """

    factor: Factor = 10.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the parameters with the update scaled (see :func:`scaled`)."""
        return scaled(own, self.factor)


@dataclass
class Scaling(LabelNoise):
    r"""Trains on labels of which a share is wrong and sends :math:`c\,u`.

    Parameters
    ----------
    ratio : float
        Share of the labels that is replaced, in [0, 1].
    factor : float
        c > 0.
    """

    factor: Factor = 10.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the parameters with the update scaled (see :func:`scaled`)."""
        return scaled(own, self.factor)


class ReturnModel(Behaviour):
    """A free rider that sends the received model back."""

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters."""
        return own.received


@dataclass
class RepeatStep(Behaviour):
    r"""A free rider that sends the last step again, :math:`c (w_{t-1} - w_{s-1}) / (t - s)`.

    s is the last round that this client took part in, so that a client that is seldom drawn sends
    the mean step since then. At its first round it knows none, and sends the model back.

    Parameters
    ----------
    factor : float
        c > 0.

    References
    ----------
    Lin et al., 2019 (Free-riders in federated learning: attacks and defenses), delta weights.
    """

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

    factor: Annotated[
        float, Setting("c: the length of the noise, in lengths of the step", gt=0)
    ] = 1.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters plus noise."""
        length = self.factor * last_step(own).norm()
        return own.received + gaussian_of_length(own.received, length, own.generator)
