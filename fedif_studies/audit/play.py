"""What players of a game send that the library has no behaviour for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from fedif_flower.attacks.behaviour import Behaviour, ClientRound, Normalize
from fedif_flower.attacks.free_riders import last_step
from fedif_flower.attacks.random_update import gaussian_of_length
from fedif_flower.tasks.modules import trainable_names
from fedif_flower.valuation.past_steps import REMEMBERED, PastSteps


@dataclass
class NoisyUpdate(Behaviour):
    """Sends its honest update and noise that is ``factor`` > 0 times as long."""

    factor: float = 0.5

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the trained parameters with noise."""
        length = self.factor * (own.trained - own.received).norm()
        return own.trained + gaussian_of_length(own.received, length, own.generator)


@dataclass
class MoreOfLastSteps(Behaviour):
    r"""Sends ``factor`` times what its update has of the last three steps, and the rest as it is.

    :math:`u \leftarrow u + (c - 1) \sum_k \langle u, e_k \rangle e_k` with :math:`e_k` the basis of
    these steps.
    """

    factor: float = 2.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the parameters with more of the last steps."""
        received = own.received
        known = own.memory.get("received", received[None]).to(received)  # [k, d], the newest first.
        if known[0].ne(received).any():
            known = torch.cat([received[None], known])[: REMEMBERED + 1]
        own.memory["received"] = known.clone()
        if len(known) == 1:
            return own.trained
        past = PastSteps(tuple(known[:-1] - known[1:]))
        shares = past.shares((own.trained - received)[None]).to(received)  # [1, k]
        return own.trained + (self.factor - 1) * (shares @ past.basis)[0]


class GradientAndLastStep(Behaviour):
    """Sends a step down its own data's gradient, as long as its update, and the last step."""

    _gradient = torch.zeros(0)

    def poison_inputs(
        self,
        model: nn.Module,
        pixels: Tensor,
        labels: Tensor,
        normalize: Normalize,
        _: torch.Generator,
    ) -> Tensor:
        """Remember the gradient at the received model; the pixels stay as they are."""
        named = dict(model.named_parameters())
        loss = cross_entropy(model(normalize(pixels)), labels)
        found = torch.autograd.grad(loss, [named[name] for name in trainable_names(model)])
        self._gradient = parameters_to_vector(found)
        return pixels

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters, both steps further."""
        gradient = self._gradient.to(own.received)
        length = (own.trained - own.received).norm() / gradient.norm().clamp_min(1e-30)
        found: Tensor = own.received - length * gradient + last_step(own)
        return found
