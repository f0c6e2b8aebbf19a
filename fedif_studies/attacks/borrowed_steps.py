"""Borrowed steps: attacks that send the last global step, which everybody knows, as own work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from fedif_flower.attacks.behaviour import Behaviour, ClientRound, Colluder, Normalize
from fedif_flower.attacks.free_riders import last_step
from fedif_flower.attacks.random_update import gaussian_of_length
from fedif_flower.attribution.credit import REMEMBERED, PastSteps
from fedif_flower.settings import Setting
from fedif_studies.attacks.harm_and_repair import harm_and_repair

_OLDER = "older"


@dataclass
class BorrowedStep(Behaviour):
    r"""Sends its honest update plus the last global step: :math:`u \leftarrow c (u + \Delta)`.

    :math:`\Delta` is the last global step that it knows of.

    Parameters
    ----------
    factor : float
        c > 0.
    """

    factor: Annotated[float, Setting("c: factor by which the sum is multiplied", gt=0)] = 2.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters plus c times update and last step."""
        return own.received + self.factor * (own.trained - own.received + last_step(own))


@dataclass
class AlternatingStep(Behaviour):
    r"""Sends the last global step, :math:`c \Delta`, in odd rounds, and is honest in even ones.

    Parameters
    ----------
    factor : float
        c > 0.
    """

    factor: Annotated[float, Setting("c: factor by which the step is multiplied", gt=0)] = 4.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters plus the step in odd rounds, else the trained ones."""
        # Called in even rounds, too, because it remembers the model from which the step starts.
        step = last_step(own)
        if own.server_round % 2:
            return own.received + self.factor * step
        return own.trained


@dataclass
class UndoneStep(Behaviour):
    r"""Undoes the last global step, :math:`-c \Delta`, in odd rounds, and redoes it in even ones.

    Parameters
    ----------
    factor : float
        c > 0.
    """

    factor: Annotated[float, Setting("c: factor of the step that is undone", gt=0)] = 3.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters less c times the last step, or with that step redone."""
        return harm_and_repair(own, -self.factor * last_step(own))


@dataclass
class NoisyStep(Behaviour):
    r"""Sends the last global step plus noise: :math:`c \Delta + c |\Delta| z / |z|`.

    z is Gaussian noise. The noise brings the cosine with the last step down to that of an honest
    update, and hardly changes the loss.

    Parameters
    ----------
    factor : float
        c > 0.
    """

    sends_buffers = False

    factor: Annotated[float, Setting("c: factor by which the step is multiplied", gt=0)] = 1.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters plus the disguised step."""
        step = self.factor * last_step(own)
        noise = gaussian_of_length(own.received, step.norm(), own.generator)
        return own.received + step + noise


@dataclass
class OlderStep(Behaviour):
    r"""Sends the global step of round t - k again: :math:`u \leftarrow c \Delta_{t-k}`.

    Parameters
    ----------
    factor : float
        c > 0.
    back : int
        k >= 2; 2 is the step before the last one.
    """

    sends_buffers = False

    factor: Annotated[float, Setting("c: factor by which the step is multiplied", gt=0)] = 2.0
    back: Annotated[int, Setting("k: 2 is the step before the last one", ge=2)] = 2

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters plus c times the older step."""
        step = last_step(own)
        # [k - 1, d]: the k - 1 steps before this one, the oldest first; zeros in the first rounds.
        newer = own.memory.get(_OLDER, torch.zeros(self.back - 1, len(step))).to(step)
        own.memory[_OLDER] = torch.cat([newer[1:], step[None]])
        return own.received + self.factor * newer[0]


@dataclass
class SharedNoise(Colluder):
    r"""All accomplices send c times the last global step plus the same noise, which is as long.

    The step is the change of the model since accomplices last took part. Noise that several members
    send looks like the effect of data that they have in common.

    Parameters
    ----------
    factor : float
        c > 0, for both step and noise.
    """

    factor: Annotated[float, Setting("c: factor by which the step is multiplied", gt=0)] = 1.0
    _received: Tensor | None = field(default=None, init=False)

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the accomplices' updates ``[k, d]``, all the same."""
        before = received if self._received is None else self._received
        self._received = received.clone()
        step = self.factor * (received - before)
        noise = gaussian_of_length(received, step.norm(), generator)
        return (step + noise).expand_as(updates)


@dataclass
class MoreOfLastSteps(Behaviour):
    r"""Multiplies its update's part along the last three global steps by ``factor``.

    .. math:: u \leftarrow u + (c - 1) \sum_k \langle u, e_k \rangle e_k

    with c the factor and :math:`e_k` an orthonormal basis of these steps.
    """

    factor: float = 2.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the trained parameters with more of the last steps in them."""
        received = own.received
        models = own.memory.get("received", received[None]).to(received)  # [k, d], newest first.
        if models[0].ne(received).any():
            models = torch.cat([received[None], models])[: REMEMBERED + 1]
        own.memory["received"] = models.clone()
        if len(models) == 1:
            return own.trained
        past = PastSteps(tuple(models[:-1] - models[1:]))
        coordinates = past.coordinates((own.trained - received)[None]).to(received)  # [1, k]
        along_steps = (coordinates @ past.basis)[0]
        return own.trained + (self.factor - 1) * along_steps


class GradientAndLastStep(Behaviour):
    """Sends a step down the gradient on its own data, plus the last global step.

    The first step is as long as its honest update.
    """

    _gradient = torch.zeros(0)

    def poison_inputs(
        self,
        model: nn.Module,
        pixels: Tensor,
        labels: Tensor,
        normalize: Normalize,
        _: torch.Generator,
    ) -> Tensor:
        """Remember the gradient at the received model, and return the pixels unchanged."""
        loss = cross_entropy(model(normalize(pixels)), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        self._gradient = parameters_to_vector(gradients)
        return pixels

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters plus both steps."""
        gradient = self._gradient.to(own.received)
        length = (own.trained - own.received).norm() / gradient.norm().clamp_min(1e-30)
        sent: Tensor = own.received - length * gradient + last_step(own)
        return sent
