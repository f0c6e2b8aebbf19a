"""The stages of a strategy, applied to a round one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedif_flower.errors import CheckpointError, ConfigError
from fedif_flower.round import RoundUpdates, moved
from fedif_flower.stages.server_optimizer import ServerOptimizer
from fedif_flower.stages.stage import Destination, Proposal, Stage
from fedif_flower.valuation.validation import Validation


class Stages:
    """Applies stages in their order; without any, a round is taken as it is.

    Parameters
    ----------
    stages : sequence of Stage
        In the order in which they are applied.

    Raises
    ------
    ConfigError
        If something else is among them, or two stages choose where a round leads, or lead on.

    Attributes
    ----------
    arrive : callable, optional
        Changes an update ``[d]`` in place as it arrives, and returns its squared norm.
    choosing : Stage, optional
        The one that chooses where a round leads.
    optimizer : ServerOptimizer, optional
        The one that moves the model on after a round's own step.
    make_groups : bool
        Whether the strategy weighs groups of clients.
    max_length : float
        The longest that an update may be; infinite: there is no such bound.
    """

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        for stage in stages:
            if not isinstance(stage, Stage):
                raise ConfigError(f"stages: {stage!r}; allowed: stages, such as Clip(2.0)")
        self._stages = tuple(stages)
        self._arriving, self._before, choosing = (
            [stage for stage in stages if getattr(type(stage), hook) is not getattr(Stage, hook)]
            for hook in ("arrive", "before", "choose")
        )
        if len(choosing) > 1:
            raise ConfigError(f"stages: {choosing}; allowed: one that chooses where a round leads")
        optimizers = [stage for stage in stages if isinstance(stage, ServerOptimizer)]
        if len(optimizers) > 1:
            raise ConfigError(f"stages: {optimizers}; allowed: one server optimizer")
        self.choosing = choosing[0] if choosing else None
        self.optimizer = optimizers[0] if optimizers else None
        self.arrive = self._arrive if self._arriving else None
        self.make_groups = any(stage.makes_groups for stage in stages)
        self.max_length = min((stage.max_length for stage in stages), default=math.inf)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages)

    def __repr__(self) -> str:
        return repr(list(self._stages))

    def begin(self, validation: Validation | None) -> None:
        """Tell every stage what the strategy judges by."""
        for stage in self:
            stage.begin(validation)

    def needs_sight(self) -> str:
        """Return the first reason why updates have to be seen, if there is one."""
        return next(filter(None, (stage.needs_sight() for stage in self)), "")

    def _arrive(self, update: Tensor, squared_norm: float) -> float:
        """Change an update ``[d]`` in place as it arrives, and return its squared norm."""
        for stage in self._arriving:
            squared_norm = stage.arrive(update, squared_norm)
        return squared_norm

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round as the strategy is to weigh it."""
        for stage in self._before:
            updates = stage.before(updates)
        return updates

    def settle(self, updates: RoundUpdates, weights: Tensor) -> Destination:
        """Return where the weights ``[m]`` of a round lead.

        Raises
        ------
        ValuationError
            If the model is not finite, or no step leads to a finite validation loss.
        """
        for_buffers = weights * updates.buffer_shortening

        def move(coefficients: Tensor) -> Destination:
            return Destination(*moved(updates, coefficients, for_buffers), coefficients)

        proposal = Proposal(updates, weights, move, self.optimizer)
        if self.choosing is None:
            return move(proposal.coefficients)
        return self.choosing.choose(proposal)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each stage, in their order."""
        return {"stages": [[type(stage).__name__, stage.state_dict()] for stage in self]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises
        ------
        CheckpointError
            If it is the state of other stages.
        """
        saved = state["stages"]
        if [name for name, _ in saved] != [type(stage).__name__ for stage in self]:
            raise CheckpointError(f"stages: {self}; saved: {[name for name, _ in saved]}")
        for stage, (_, own) in zip(self, saved, strict=True):
            stage.load_state_dict(own)
