"""What attribution remembers from one round to the next, and keeps in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fedif_flower.attribution.carried import CarriedUpdates
from fedif_flower.attribution.credit import CreditBounds, PastSteps


@dataclass(frozen=True)
class HandedOn:
    """What the attribution of the next step needs to know of the steps so far.

    Attributes
    ----------
    updates : tuple of CarriedUpdates
        The updates in the last step, the newest first, if the server has momentum; else empty.
    past : PastSteps
        The last steps by which the model really moved, if credit is bounded; else empty.
    """

    updates: tuple[CarriedUpdates, ...] = ()
    past: PastSteps = field(default_factory=PastSteps)


@dataclass(frozen=True)
class _AfterRound:
    """What the rounds after a certain round need to know of it and of those before."""

    handed_on: HandedOn
    carried_before: tuple[CarriedUpdates, ...]  # The carried updates before the last step.
    last_step: int  # The round of the last step that may be taken back; 0: there is none.
    bounds: Mapping[str, Any] | None  # The state of the bounds of credit, if there are any.

    def state(self) -> dict[str, Any]:
        """Return everything as dicts, lists, numbers and tensors."""
        return {
            "carried": [updates.state() for updates in self.handed_on.updates],
            "carried_before": [updates.state() for updates in self.carried_before],
            "last_step": self.last_step,
            "bounds": self.bounds,
            "past_steps": self.handed_on.past.steps,
        }


class AttributionMemory:
    """What steps hand on, now and before the last step; and a copy after each of the last rounds.

    A step may be taken back, and an interrupted round is repeated: both need an earlier state.

    Parameters
    ----------
    bounds : CreditBounds, optional
        The bounds of credit; what they remember of members is kept together with the rest.

    Attributes
    ----------
    handed_on : HandedOn
        What the next step's attribution needs.
    """

    def __init__(self, bounds: CreditBounds | None) -> None:
        self._bounds = bounds
        self.handed_on = HandedOn()
        self._before_step = HandedOn()  # As ``handed_on`` was before the last step.
        # By round, the last two alone; 0: before the first round.
        self._after_rounds = {0: self._now(last_step=0)}

    def note_step(
        self, before: Tensor, after: Tensor, carried: tuple[CarriedUpdates, ...] | None
    ) -> None:
        """Note a step of the model, and the updates that it carries on.

        Parameters
        ----------
        before, after : Tensor
            ``[d]``: the parameters before and after the step.
        carried : tuple of CarriedUpdates, optional
            The updates that the server's momentum carries on from now; ``None``: the server has no
            momentum.
        """
        self._before_step = self.handed_on
        if carried is not None:
            self.handed_on = replace(self.handed_on, updates=carried)
        if self._bounds is not None:
            past = self.handed_on.past.after(after - before)
            self.handed_on = replace(self.handed_on, past=past)

    def undo_step(self) -> None:
        """Forget the last step, which was taken back before anybody received its model."""
        self.handed_on = self._before_step

    def carry_as_before_step(self) -> None:
        """Carry on the updates from before the last step, which was taken back in a later round.

        Unlike in :meth:`undo_step`, ``past`` stays: clients did receive the step's model.
        """
        # Removing the newest updates would not do: if the optimizer began anew with the step that
        # is taken back, older updates are to be carried on again.
        self.handed_on = replace(self.handed_on, updates=self._before_step.updates)

    def keep(self, server_round: int, last_step: int) -> None:
        """Keep a copy of what there is after a round, for a checkpoint; drop all but the last two.

        Parameters
        ----------
        server_round : int
            The round.
        last_step : int
            The round of the last step that may be taken back; 0: there is none.
        """
        newest = list(self._after_rounds.items())[-1:]
        self._after_rounds = dict(newest)
        self._after_rounds[server_round] = self._now(last_step)

    def correct(self, server_round: int, last_step: int) -> None:
        """Replace the copy of a round whose model was taken back after :meth:`keep`."""
        self._after_rounds[server_round] = self._now(last_step)

    def restore_bounds(self, last_round: int) -> None:
        """Restore what the bounds of credit remembered after a round, if its copy is still kept."""
        after_round = self._after_rounds.get(last_round)
        if self._bounds is None or after_round is None or after_round.bounds is None:
            return
        self._bounds.load_state_dict(after_round.bounds)

    def state_dict(self, last_round: int, last_step: int) -> dict[str, Any]:
        """Return the copy that :meth:`keep` made after a round; without a copy, what there is now.

        ``last_step`` counts in the second case: see :meth:`keep`.
        """
        after_round = self._after_rounds.get(last_round)
        if after_round is None:
            after_round = self._now(last_step)
        return after_round.state()

    def load_state_dict(self, state: Mapping[str, Any], last_round: int) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises
        ------
        ValueError
            If credit is bounded in the state but not in this run, or the other way round.
        """
        if (self._bounds is None) != (state["bounds"] is None):
            raise ValueError(
                "credit has bounds in the checkpoint and not in this run, or the other way round; "
                "resume with the same credit.* settings"
            )
        if self._bounds is not None:
            self._bounds.load_state_dict(state["bounds"])
        carried = tuple(map(CarriedUpdates.from_state, state["carried"]))
        self.handed_on = HandedOn(carried, PastSteps(state["past_steps"]))
        # Checkpoints of earlier versions have no "carried_before".
        carried_before = state.get("carried_before", ())
        self._before_step = HandedOn(tuple(map(CarriedUpdates.from_state, carried_before)))
        self._after_rounds = {last_round: self._now(int(state.get("last_step", 0)))}

    def _now(self, last_step: int) -> _AfterRound:
        """Return a copy of what there is now."""
        bounds = None
        if self._bounds is not None:
            bounds = self._bounds.state_dict()
        return _AfterRound(self.handed_on, self._before_step.updates, last_step, bounds)
