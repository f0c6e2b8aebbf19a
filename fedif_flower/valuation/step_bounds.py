"""How far a round may move the model: by usual lengths, and by the validation loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import LengthMemory, clipping_factors, usual_length
from fedif_flower.aggregators.server_momentum import ServerMomentum
from fedif_flower.round import RoundUpdates, moved
from fedif_flower.valuation.loss_bound import TOLERANCE, BoundedStep, LossBound
from fedif_flower.valuation.validation import Validation


class StepBounds:
    r"""Shortens long updates, and replaces steps that would lose what was gained before.

    Lengths are bounded by :class:`~fedif_flower.aggregators.clipping.LengthMemory`, the step by
    :class:`~fedif_flower.valuation.loss_bound.LossBound` where there is a validation set.

    Parameters
    ----------
    multiple : float
        Updates are shortened to so many times the usual length, >= 0; 0: nothing is bounded.
    validation : Validation, optional
        The held-out set D' with model and loss. ``None``: lengths alone are bounded.
    tolerance : float
        See :class:`~fedif_flower.valuation.loss_bound.LossBound`.
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
        self.loss: LossBound | None = None
        if multiple and validation is not None:
            self.loss = LossBound(validation, tolerance, momentum)

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
            If the model is not finite, or no step leads to a finite validation loss.
        """
        factors, buffer_factors = self.factors(updates)
        for_buffers = weights * buffer_factors

        def move(coefficients: Tensor) -> BoundedStep:
            return BoundedStep(*moved(updates, coefficients, for_buffers), coefficients)

        if self.loss is None:
            return move(weights * factors)
        return self.loss.choose(updates, weights, factors, buffer_factors, move)

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

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {
            "lengths": self.lengths.state_dict(),
            "loss": self.loss.state_dict() if self.loss else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.lengths.load_state_dict(state["lengths"])
        if self.loss:
            self.loss.load_state_dict(state["loss"])
