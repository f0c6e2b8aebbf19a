"""Members that fail: they are asked less often, and the run ends if most of them fail."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedif_flower.errors import TrainingFailedError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screening import RefusedReply
from fedif_flower.server.record import Round

logger = logging.getLogger(__name__)


class _PoorRounds(NamedTuple):
    """The latest rounds in a row in which most members erred.

    ``rounds`` is their number; ``asked`` and ``erred`` count members over all of them.
    """

    rounds: int = 0
    asked: int = 0
    erred: int = 0


class _Errors(NamedTuple):
    """A member's errors in a row, and the last round for which they pause it."""

    in_a_row: int = 0
    paused_until: int = 0


class MemberFailures:
    """Pauses members that gave no usable reply, and ends a run in which most members give none.

    A member errs in a round if it was asked and its reply is an error, is refused or does not
    come. A late reply that is an error or refused counts in the round in which it comes. After k
    errors in a row the member is left out for :math:`2^{k-1} - 1` turns: 0, 1, 3, 7 and so on. A
    turn is the number of rounds in which a member is asked once on average. One usable reply sets
    k back to 0. A round whose model makes most members fail counts neither for nor against them.

    Parameters
    ----------
    max_in_a_row : int
        After this many errors in a row, >= 1, a member counts as failing. The run also ends after
        this many rounds in a row in which no model could be made of enough usable replies. A round
        with fewer replies neither counts nor interrupts the row: it does not show whether a model
        can be made.
    max_paused_turns : int
        The longest pause in turns, >= 0; 0: no member is paused.
    """

    def __init__(self, max_in_a_row: int, max_paused_turns: int = 63) -> None:
        self.max_in_a_row = max_in_a_row
        self.max_paused_turns = max_paused_turns
        # By client id. A member without an error since its last usable reply has no entry.
        self._erring: dict[int, _Errors] = {}
        self._poor = _PoorRounds()
        # Rounds in a row that had enough usable replies, and still made no model of them. Rounds
        # with fewer usable replies are not counted, and do not interrupt the row.
        self._failed_rounds = 0
        # The number of rounds in which a member is asked once on average.
        self._turn = 1

    def available(
        self, nodes: Sequence[ClientNode], server_round: int, at_least: int
    ) -> Sequence[ClientNode]:
        """Return the nodes that are not paused; all nodes if fewer than ``at_least`` remain."""
        paused = self.paused(server_round)
        if not paused:
            return nodes
        free = [node for node in nodes if node.client_id not in paused]
        if len(free) == len(nodes) or len(free) < at_least:
            return nodes
        logger.info("round %d: %d nodes paused after errors", server_round, len(nodes) - len(free))
        return free

    def paused(self, server_round: int) -> Collection[int]:
        """Return the client ids of the members that are paused in a round."""
        return {
            client_id
            for client_id, errors in self._erring.items()
            if errors.paused_until >= server_round
        }

    def first_errors(self, refused: Iterable[RefusedReply]) -> int:
        """Count the clients whose app raised an error now, and that had no error in a row before.

        If many fail for the first time at once, the model is the likely cause.
        """
        return sum(
            reply.status == "failed" and reply.node.client_id not in self._erring
            for reply in refused
        )

    def update(self, current: Round, *, why_failed: str) -> None:
        """Count a round's errors, and pause the members that erred.

        Parameters
        ----------
        current : Round
            The round, with its accepted and refused replies.
        why_failed : str
            Why the round made no model although enough replies were usable; empty otherwise.

        Raises
        ------
        TrainingFailedError
            If most members fail, or if too many rounds in a row failed on the server's side.
        """
        usable_ids = {reply.node.client_id for reply in current.accepted}
        for client_id in usable_ids:
            self._erring.pop(client_id, None)
        self.update_late(current)
        late = {reply.node for reply in current.refused if reply.status == "late"}
        # A member that is merely slow has not erred: its reply may still come.
        members = [node for node in current.members if node not in late]
        erred = [node.client_id for node in members if node.client_id not in usable_ids]
        self._pause_all(erred, current)
        # If all members are late, it is not known yet whether most of them err.
        if members:
            self._count_poor_round(len(members), len(erred))
        if why_failed:
            self._failed_rounds += 1
        elif current.aggregation is not None:
            self._failed_rounds = 0
        why = self._why_to_give_up(current.online)
        if why:
            first_reason = why_failed
            if not first_reason and current.refused:
                first_reason = current.refused[0].reason
            raise TrainingFailedError(
                f"{why}; the last was round {current.round} with {len(current.accepted)} usable "
                f"replies; first reason: {first_reason}"
            )

    def update_late(self, current: Round) -> None:
        """Count only the errors that came in this round as late replies to earlier rounds."""
        self._pause_all([node.client_id for node in current.failed_late], current)

    def _pause_all(self, erred: Iterable[int], current: Round) -> None:
        """Count an error of each of these members in a round, and pause them."""
        # A round that only takes in late replies says nothing of how often members are asked.
        if current.members:
            self._turn = math.ceil(len(current.online) / len(current.members))
        for client_id in erred:
            self._pause(client_id, current.round)

    def _pause(self, client_id: int, server_round: int) -> None:
        """Pause a member after its k-th error in a row for 2^(k-1) - 1 turns."""
        before = self._erring.get(client_id, _Errors())
        in_a_row = before.in_a_row + 1
        turns = min(2 ** (in_a_row - 1) - 1, self.max_paused_turns)
        self._erring[client_id] = _Errors(in_a_row, server_round + self._turn * turns)

    def _count_poor_round(self, num_members: int, num_erred: int) -> None:
        """Extend the row of rounds in which most members erred, or end it."""
        poor = self._poor
        self._poor = _PoorRounds()
        if 2 * num_erred > num_members:
            self._poor = _PoorRounds(
                poor.rounds + 1, poor.asked + num_members, poor.erred + num_erred
            )

    def _why_to_give_up(self, online: Sequence[ClientNode]) -> str:
        """Return why the run has to end; empty if it goes on."""
        why = self._why_most_are_failing(online) or self._why_most_asked_err()
        if not why and self._failed_rounds >= self.max_in_a_row:
            why = (
                f"{self._failed_rounds} rounds in a row with enough usable replies made no model "
                "of them"
            )
        return why

    def _why_most_are_failing(self, online: Sequence[ClientNode]) -> str:
        """Return words that say how many members online are failing; empty if not most are."""
        failing = {
            client_id
            for client_id, errors in self._erring.items()
            if errors.in_a_row >= self.max_in_a_row
        }
        if not failing:
            return ""
        num_failing = sum(node.client_id in failing for node in online)
        if 2 * num_failing <= len(online):
            return ""
        return (
            f"most members fail: {num_failing} of {len(online)} gave no usable reply the last "
            f"{self.max_in_a_row} times that they were asked"
        )

    def _why_most_asked_err(self) -> str:
        """Return words that say how many of the members asked lately erred; empty if not most did.

        In a large federation it takes many rounds until most members have been asked
        ``max_in_a_row`` times. This test sees earlier that most of them fail.
        """
        poor = self._poor
        # If each member erred with probability 1/2, the number that err would have mean asked / 2
        # and standard deviation sqrt(asked) / 2. Four deviations above the mean is not by chance.
        by_chance = poor.asked / 2 + 2 * poor.asked**0.5
        if poor.rounds < self.max_in_a_row or poor.erred <= by_chance:
            return ""
        return (
            f"most members fail: {poor.erred} of the {poor.asked} asked in {poor.rounds} "
            "rounds in a row gave no usable reply"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: errors in a row by client id, and both counts."""
        erring = {client_id: list(errors) for client_id, errors in self._erring.items()}
        return {"erring": erring, "poor": list(self._poor), "failed_rounds": self._failed_rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._erring = {client_id: _Errors(*saved) for client_id, saved in state["erring"].items()}
        self._poor = _PoorRounds(*state["poor"])
        self._failed_rounds = state["failed_rounds"]
