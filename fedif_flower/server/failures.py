"""Members that err: they are asked less often, and the run ends where most of them err."""

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
    """Rounds in a row in which most members erred: how many rounds, and members asked in all."""

    rounds: int = 0
    asked: int = 0
    erred: int = 0


class _Errors(NamedTuple):
    """A member's errors in a row, and the last round in which it is not asked for them."""

    in_a_row: int = 0
    paused_until: int = 0


class MemberFailures:
    """Pauses members that gave no usable reply, and ends a run in which most members give none.

    A member errs in a round if it was asked and its reply is an error, is refused or does not
    come; of a late reply, in the round in which it comes. After k errors in a row it is left out
    for :math:`2^{k-1} - 1` turns: 0, 1, 3, 7 and so on. A turn is the number of rounds in which a
    member is asked once on average. One usable reply sets k back to 0,
    except in a round that takes the model back, which says nothing of anybody.

    Parameters
    ----------
    maximum : int
        How many errors in a row make a member a failing one, and how many rounds in a row that
        fail on the server's side end the run, >= 1.
    max_paused_turns : int
        The longest pause, >= 0; 0: nobody is paused.
    """

    def __init__(self, maximum: int, max_paused_turns: int = 63) -> None:
        self.maximum = maximum
        self.max_paused_turns = max_paused_turns
        self._erring: dict[int, _Errors] = {}  # By member, those that err alone.
        self._poor = _PoorRounds()
        self._failed_rounds = 0  # In a row: enough replies were usable, and yet it made no model.

    def available(
        self, nodes: Sequence[ClientNode], server_round: int, at_least: int
    ) -> Sequence[ClientNode]:
        """Return the nodes that are not paused; all, if those were fewer than ``at_least``."""
        paused = self.paused(server_round)
        if not paused:
            return nodes
        free = [node for node in nodes if node.client_id not in paused]
        if len(free) == len(nodes) or len(free) < at_least:
            return nodes
        logger.info("round %d: %d nodes paused after errors", server_round, len(nodes) - len(free))
        return free

    def paused(self, server_round: int) -> Collection[int]:
        """Return the client ids of those left out of a round."""
        return {
            client_id
            for client_id, errors in self._erring.items()
            if errors.paused_until >= server_round
        }

    def first_errors(self, refused: Iterable[RefusedReply]) -> int:
        """Return how many of these clients raised an error, and did not err before."""
        return sum(
            reply.status == "failed" and reply.node.client_id not in self._erring
            for reply in refused
        )

    def update(self, current: Round, *, why_failed: str) -> None:
        """Take in a round; ``why_failed``: why it made no model of its usable replies, if so.

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
        members = [node for node in current.members if node not in late]  # The slow do not err.
        if not members:
            return
        erred = [node.client_id for node in members if node.client_id not in usable_ids]
        self._pause_all(erred, current)
        self._count_poor_round(len(members), len(erred))
        if why_failed:
            self._failed_rounds += 1
        else:
            self._failed_rounds = 0
        why = self._why_to_give_up(current.online)
        if why:
            first_reason = why_failed
            if not first_reason and current.refused:
                first_reason = current.refused[0].reason
            raise TrainingFailedError(
                f"{why}; the last was round {current.round} with {len(current.accepted)} valid "
                f"replies of {len(members)}; first reason: {first_reason}"
            )

    def update_late(self, current: Round) -> None:
        """Take in the errors alone that are late replies to earlier rounds."""
        self._pause_all([node.client_id for node in current.failed_late], current)

    def _pause_all(self, erred: Iterable[int], current: Round) -> None:
        # In so many rounds a member is asked once on average.
        turn = math.ceil(len(current.online) / max(len(current.members), 1))
        for client_id in erred:
            self._pause(client_id, current.round, turn)

    def _pause(self, client_id: int, server_round: int, turn: int) -> None:
        """Pause a member after its k-th error in a row for 2^(k-1) - 1 turns."""
        before = self._erring.get(client_id, _Errors())
        in_a_row = before.in_a_row + 1
        turns = min(2 ** (in_a_row - 1) - 1, self.max_paused_turns)
        self._erring[client_id] = _Errors(in_a_row, server_round + turn * turns)

    def _count_poor_round(self, num_members: int, num_erred: int) -> None:
        """Count a round in which most members erred; any other one ends their row."""
        poor = self._poor
        self._poor = _PoorRounds()
        if 2 * num_erred > num_members:
            self._poor = _PoorRounds(
                poor.rounds + 1, poor.asked + num_members, poor.erred + num_erred
            )

    def _why_to_give_up(self, online: Sequence[ClientNode]) -> str:
        """Return why the run ends; empty: it goes on."""
        why = self._why_most_are_failing(online) or self._why_most_asked_err()
        if not why and self._failed_rounds >= self.maximum:
            why = f"{self._failed_rounds} rounds in a row failed"
        return why

    def _why_most_are_failing(self, online: Sequence[ClientNode]) -> str:
        """Return how many of those online fail whenever they are asked; empty: not most."""
        failing = {
            client_id
            for client_id, errors in self._erring.items()
            if errors.in_a_row >= self.maximum
        }
        if not failing:
            return ""
        num_failing = sum(node.client_id in failing for node in online)
        if 2 * num_failing <= len(online):
            return ""
        return (
            f"most members fail: {num_failing} of {len(online)} gave no usable reply in "
            f"{self.maximum} rounds in a row that they were asked in"
        )

    def _why_most_asked_err(self) -> str:
        """Return how many of those asked of late erred; empty: no more than by chance.

        It tells long before all of a large federation were asked often enough to be failing.
        """
        poor = self._poor
        # If each erred with a chance of 1/2, asked / 2 would, give or take sqrt(asked) / 2: more
        # than four of these standard deviations above it is no chance.
        by_chance = poor.asked / 2 + 2 * poor.asked**0.5
        if poor.rounds < self.maximum or poor.erred <= by_chance:
            return ""
        return (
            f"most members fail: {poor.erred} of the {poor.asked} asked in {poor.rounds} "
            "rounds in a row gave no usable reply"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        erring = {client_id: list(errors) for client_id, errors in self._erring.items()}
        return {"erring": erring, "poor": list(self._poor), "failed_rounds": self._failed_rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._erring = {client_id: _Errors(*saved) for client_id, saved in state["erring"].items()}
        self._poor = _PoorRounds(*state["poor"])
        self._failed_rounds = state["failed_rounds"]
