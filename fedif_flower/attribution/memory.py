"""What attribution remembers from one round to the next, as a checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fedif_flower.attribution.carried import CarriedUpdates
from fedif_flower.attribution.credit import CreditBounds, PastSteps


@dataclass(frozen=True)
class HandedOn:
    """What the steps so far hand on to the next one.

    Attributes
    ----------
    updates : tuple of CarriedUpdates
        Those in the last step, the newest first, if a server's momentum carries them on.
    past : PastSteps
        The last steps that the model really moved by, where credit is bounded.
    """

    updates: tuple[CarriedUpdates, ...] = ()
    past: PastSteps = field(default_factory=PastSteps)


@dataclass(frozen=True)
class _AfterRound:
    """What later rounds need of those until one."""

    handed_on: HandedOn
    carried_before: tuple[CarriedUpdates, ...]  # Before the last step.
    last_step: int
    bounds: Mapping[str, Any] | None

    def state(self) -> dict[str, Any]:
        """Return everything in dicts, lists, numbers and tensors."""
        return {
            "carried": [updates.state() for updates in self.handed_on.updates],
            "carried_before": [updates.state() for updates in self.carried_before],
            "last_step": self.last_step,
            "bounds": self.bounds,
            "past_steps": self.handed_on.past.steps,
        }


class AttributionMemory:
    """Remembers what the steps hand on, what it was before the last one, and the last two rounds.

    Parameters
    ----------
    bounds : CreditBounds, optional
        What these remember of members belongs to it.
    """

    def __init__(self, bounds: CreditBounds | None) -> None:
        self._bounds = bounds
        self.handed_on = HandedOn()
        self._before_step = HandedOn()
        self._after_rounds = {0: self._now(last_step=0)}

    def note_step(
        self, before: Tensor, after: Tensor, carried: tuple[CarriedUpdates, ...] | None
    ) -> None:
        """Note a step from parameters ``[d]`` to others, and what it carries on.

        ``None``: what was carried on before it.
        """
        self._before_step = self.handed_on
        if carried is not None:
            self.handed_on = replace(self.handed_on, updates=carried)
        if self._bounds is not None:
            past = self.handed_on.past.after(after - before)
            self.handed_on = replace(self.handed_on, past=past)

    def undo_step(self) -> None:
        """Forget the last step: nobody received the model that it led to."""
        self.handed_on = self._before_step

    def carry_as_before_step(self) -> None:
        """Carry on what was carried on before the last step; the model has gone there and back."""
        # All of them: the step that goes may have been the first of an optimizer begun anew.
        self.handed_on = replace(self.handed_on, updates=self._before_step.updates)

    def keep(self, server_round: int, last_step: int) -> None:
        """Keep what later rounds need of those until this one, for a checkpoint.

        ``last_step`` is the round of the last step that may be taken back; 0: there is none.
        """
        newest = list(self._after_rounds.items())[-1:]
        self._after_rounds = dict(newest)
        self._after_rounds[server_round] = self._now(last_step)

    def correct(self, server_round: int, last_step: int) -> None:
        """Keep it again: the model of a round that was kept did not stay."""
        self._after_rounds[server_round] = self._now(last_step)

    def restore_bounds(self, last_round: int) -> None:
        """Let the bounds of credit go back to what they remembered after a round, if it is kept."""
        after_round = self._after_rounds.get(last_round)
        if self._bounds is None or after_round is None or after_round.bounds is None:
            return
        self._bounds.load_state_dict(after_round.bounds)

    def state_dict(self, last_round: int, last_step: int) -> dict[str, Any]:
        """Return what :meth:`keep` kept of a round; where it is not kept any more, what is now."""
        after_round = self._after_rounds.get(last_round)
        if after_round is None:
            after_round = self._now(last_step)
        return after_round.state()

    def load_state_dict(self, state: Mapping[str, Any], last_round: int) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises
        ------
        ValueError
            If credit is bounded there and not here, or the other way.
        """
        if (self._bounds is None) != (state["bounds"] is None):
            raise ValueError("its credit is bounded where this run's is not, or the other way")
        if self._bounds is not None:
            self._bounds.load_state_dict(state["bounds"])
        carried = tuple(map(CarriedUpdates.from_state, state["carried"]))
        self.handed_on = HandedOn(carried, PastSteps(state["past_steps"]))
        # Earlier versions did not keep what goes back with a model.
        carried_before = state.get("carried_before", ())
        self._before_step = HandedOn(tuple(map(CarriedUpdates.from_state, carried_before)))
        self._after_rounds = {last_round: self._now(int(state.get("last_step", 0)))}

    def _now(self, last_step: int) -> _AfterRound:
        bounds = None
        if self._bounds is not None:
            bounds = self._bounds.state_dict()
        return _AfterRound(self.handed_on, self._before_step.updates, last_step, bounds)
