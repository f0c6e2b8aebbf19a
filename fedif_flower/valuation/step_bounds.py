"""How far a round may move the model: by usual lengths, and by the validation loss."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import LengthMemory, clipping_factors, usual_length
from fedif_flower.aggregators.server_momentum import ServerMomentum
from fedif_flower.round import RoundUpdates, moved
from fedif_flower.valuation.influence import project_updates
from fedif_flower.valuation.validation import Validation

TOLERANCE = 0.02
WARY_ROUNDS = 10
HALVINGS = 4

logger = logging.getLogger(__name__)


class BoundedStep(NamedTuple):
    """Where a round leads: parameters ``[d]``, buffers ``[b]``, and the coefficients applied.

    ``coefficients`` [m] are what the updates of the parameters were multiplied by.
    """

    params: Tensor
    buffers: Tensor
    coefficients: Tensor


class StepBounds:
    r"""Shortens long updates, and steps that would lose what was gained before.

    Lengths are bounded by :class:`~fedif_flower.aggregators.clipping.LengthMemory`. A round's step
    is then taken if it keeps the validation loss near the least one so far,

    .. math:: \ell(w_t, D') \le \min_{s < t} \ell(w_s, D') + \rho\, |\ell(w_0, D')|.

    If it does not, this round and the next ten are *wary*. In a wary round updates that raise the
    validation loss, :math:`\langle u_i, \nabla \ell(w_{t-1}, D') \rangle \ge 0`, are left out, the
    others are bounded by half the length, and the step is halved until the loss is within its
    bound. After four halvings the model stays as it was. With server momentum :math:`w_t` is where
    the running mean leads, and a wary round begins a new mean.

    A round costs one pass over the validation set; a wary one also a gradient and up to four more
    passes.

    Parameters
    ----------
    multiple : float
        Updates are shortened to so many times the usual length, >= 0; 0: nothing is bounded.
    validation : Validation, optional
        The held-out set D' with model and loss. ``None``: lengths alone are bounded.
    tolerance : float
        :math:`\rho`, >= 0.
    momentum : ServerMomentum, optional
        How the model moves on; ``None``: by each round's own step.
    """

    def __init__(
        self,
        multiple: float,
        validation: Validation | None = None,
        tolerance: float = TOLERANCE,
        momentum: ServerMomentum | None = None,
    ) -> None:
        self.lengths = LengthMemory(multiple)
        self.validation = validation if multiple else None
        self.tolerance = tolerance
        self.momentum = momentum or ServerMomentum()
        self._first: float | None = None  # Loss at the start.
        self._least = math.inf
        self._wary_until = 0

    def settle(self, updates: RoundUpdates, weights: Tensor) -> BoundedStep:
        """Return where a round leads by itself, and by which coefficients.

        Parameters
        ----------
        updates : RoundUpdates
            The round's replies.
        weights : Tensor
            ``[m]``: how much each would count if nothing were bounded.

        Raises
        ------
        ValuationError
            If the model is not finite.
        """
        factors, buffer_factors = self.factors(updates)
        for_buffers = weights * buffer_factors

        def move(factors: Tensor) -> BoundedStep:
            coefficients = weights * factors
            return BoundedStep(*moved(updates, coefficients, for_buffers), coefficients)

        if self.validation is None:
            return move(factors)
        before = BoundedStep(
            updates.global_params.cpu(), updates.global_buffers.cpu(), torch.zeros_like(weights)
        )
        if self._first is None or not math.isfinite(self._first):
            self._first = self._least = self._loss(updates, before)
        if updates.server_round > self._wary_until:
            model = move(factors)
            if self._keeps(updates, model):
                return model
            self._wary_until = updates.server_round + WARY_ROUNDS
            logger.warning(
                "round %d: the validation loss would rise too far; for %d rounds updates that "
                "raise it are left out and the others bounded by half the length",
                updates.server_round,
                WARY_ROUNDS,
            )
        return self._warily(updates, move) or before

    def factors(self, updates: RoundUpdates) -> tuple[Tensor, Tensor]:
        """Return by how much each client's parameters and buffers are shortened, ``[m]`` each."""
        lengths = self.lengths.factors(
            updates.server_round, updates.client_ids, updates.squared_norms
        )
        return lengths, self._buffer_factors(updates)

    def _buffer_factors(self, updates: RoundUpdates) -> Tensor:
        """Return factors ``[m]`` that bound changes of buffers by the round's own median."""
        squared_norms = updates.buffer_updates.double().square().sum(dim=1).cpu()  # [m]
        if not self.lengths.multiple:
            return torch.ones_like(squared_norms)
        usual = usual_length(squared_norms.sqrt())
        return clipping_factors(squared_norms, self.lengths.multiple * usual)

    def _warily(
        self, updates: RoundUpdates, move: Callable[[Tensor], BoundedStep]
    ) -> BoundedStep | None:
        assert self.validation is not None
        self.momentum.restart()
        gradient = self.validation.gradient(updates.global_params, updates.named_buffers)
        projections = project_updates(
            updates.client_updates,
            gradient.to(updates.client_updates.device),
            updates.squared_norms.to(updates.client_updates.device),
        )
        shortened = self.lengths.bounded(updates.squared_norms, 0.5)
        factors = torch.where(projections.inner.cpu() > 0, shortened, 0.0)
        for halving in range(HALVINGS + 1):
            model = move(factors * 0.5**halving)
            if self._keeps(updates, model):
                return model
            self._wary_until = updates.server_round + WARY_ROUNDS
        logger.warning(
            "round %d: no step keeps the validation loss; the model stays as it was",
            updates.server_round,
        )
        return None

    def _keeps(self, updates: RoundUpdates, model: BoundedStep) -> bool:
        """Tell whether a model's loss is within the bound, and remember it if it is."""
        assert self._first is not None
        params = self.momentum.moved(updates.global_params.cpu(), model.params)
        loss = self._loss(updates, model._replace(params=params))
        kept = loss <= self._least + self.tolerance * abs(self._first)
        if kept:
            self._least = min(self._least, loss)
        # Where no loss was ever finite there is nothing to keep.
        return kept or not math.isfinite(self._first)

    def _loss(self, updates: RoundUpdates, model: BoundedStep) -> float:
        assert self.validation is not None
        return self.validation.loss(model.params, updates.split_buffers(model.buffers))

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {
            "lengths": self.lengths.state_dict(),
            "first": self._first,
            "least": self._least,
            "wary_until": self._wary_until,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.lengths.load_state_dict(state["lengths"])
        self._first, self._least = state["first"], state["least"]
        self._wary_until = state["wary_until"]
