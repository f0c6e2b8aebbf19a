"""The stages of a strategy, applied to a round one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedif_flower.errors import CheckpointError, ConfigError
from fedif_flower.round import RoundUpdates, moved
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
        If something else is among them, or two stages choose where a round leads.
    """

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        for stage in stages:
            if not isinstance(stage, Stage):
                raise ConfigError(f"stages: {stage!r}; allowed: stages, such as Clip(2.0)")
        self._stages = tuple(stages)
        choosing = [stage for stage in stages if type(stage).choose is not Stage.choose]
        if len(choosing) > 1:
            raise ConfigError(f"stages: {choosing}; allowed: one that chooses where a round leads")
        self._choosing = choosing[0] if choosing else Stage()

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages)

    def __repr__(self) -> str:
        return repr(list(self._stages))

    @property
    def change_updates(self) -> bool:
        """Whether the strategy may weigh other updates than those that were sent."""
        return any(
            type(stage).arrive is not Stage.arrive or type(stage).before is not Stage.before
            for stage in self
        )

    @property
    def make_groups(self) -> bool:
        """Whether the strategy weighs groups of clients."""
        return any(stage.makes_groups for stage in self)

    @property
    def choose_steps(self) -> bool:
        """Whether a stage chooses where a round leads."""
        return type(self._choosing) is not Stage

    def begin(self, validation: Validation | None) -> None:
        """Tell every stage what the strategy judges by."""
        for stage in self:
            stage.begin(validation)

    def needs_sight(self) -> str:
        """Return the first reason why updates have to be seen, if there is one."""
        return next(filter(None, (stage.needs_sight() for stage in self)), "")

    @property
    def max_length(self) -> float:
        """The longest that an update may be; infinite: there is no such bound."""
        return min((stage.max_length for stage in self), default=math.inf)

    @property
    def carry_steps(self) -> bool:
        """Whether a stage carries earlier steps on, as server optimizers do."""
        return any(type(stage).lead is not Stage.lead for stage in self)

    @property
    def keep_coefficients(self) -> bool:
        """Whether a sum of updates times coefficients is still one when all is done."""
        return all(stage.keeps_coefficients for stage in self)

    @property
    def move_on(self) -> bool:
        """Whether the steps so far would move the model without a new one."""
        return any(stage.moves_on for stage in self)

    def arrive(self, update: Tensor, squared_norm: float) -> float:
        """Change an update ``[d]`` in place as it arrives, and return its squared norm."""
        for stage in self:
            squared_norm = stage.arrive(update, squared_norm)
        return squared_norm

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round as the strategy is to weigh it."""
        for stage in self:
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

        return self._choosing.choose(Proposal(updates, weights, move, self.lead, self.restart))

    def lead(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the parameters ``[d]`` that a step from ``before`` to ``after`` leads to."""
        for stage in self:
            after = stage.lead(before, after)
        return after

    def advance(self, before: Tensor, after: Tensor) -> Tensor:
        """Return what :meth:`lead` does, and take the step into account for later rounds."""
        for stage in self:
            after = stage.advance(before, after)
        return after

    @property
    def shares(self) -> list[float]:
        """What the steps of earlier rounds count for in the last one, newest first; or empty."""
        return next((stage.shares for stage in self if stage.shares), [])

    def restart(self) -> None:
        """Make every stage forget the steps of earlier rounds."""
        for stage in self:
            stage.restart()

    def remarks(self) -> list[str]:
        """Return what a reader should know of the stages when the rounds are over."""
        return [remark for stage in self if (remark := stage.remark())]

    def take_back(self) -> None:
        """Tell every stage that the model of the last step is taken back."""
        for stage in self:
            stage.take_back()

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
