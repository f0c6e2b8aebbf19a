"""Members that err: they are asked less often, and the run ends where most of them err."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fedif_flower.errors import TrainingFailedError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screening import Screening

logger = logging.getLogger(__name__)


class _PoorRounds(NamedTuple):
    """Rounds in a row in which most of those asked erred: how many, and of how many in all."""

    rounds: int = 0
    asked: int = 0
    erred: int = 0


class MemberFailures:
    """Pauses members that gave no usable reply, and ends a run in which most members give none.

    A member errs in a round if it was asked and its reply is an error, is refused or does not
    come. After k errors in a row it is left out for :math:`2^{k-1} - 1` turns: 0, 1, 3, 7 and so
    on. A turn is the number of rounds in which a member is asked once on average. One usable reply
    sets k back to 0.

    Parameters
    ----------
    maximum : int
        So many errors in a row make a member a failing one, and so many rounds in a row that fail
        on the server's side end the run, >= 1.
    max_paused_turns : int
        The longest pause, >= 0; 0: nobody is paused.
    """

    def __init__(self, maximum: int, max_paused_turns: int = 63) -> None:
        self.maximum = maximum
        self.max_paused_turns = max_paused_turns
        # Of members that err: errors in a row, and the last round in which not to ask again.
        self._erring: dict[int, tuple[int, int]] = {}
        self._poor = _PoorRounds()
        self._failed_rounds = 0  # In a row: enough replies were usable, and yet it made no model.

    def available(
        self, nodes: Sequence[ClientNode], server_round: int, at_least: int
    ) -> Sequence[ClientNode]:
        """Return the nodes that are not paused; all, if those were fewer than ``at_least``."""
        paused = self.paused(server_round)
        free = [n for n in nodes if n.client_id not in paused] if paused else nodes
        if len(free) == len(nodes) or len(free) < at_least:
            return nodes
        logger.info("round %d: %d nodes paused after errors", server_round, len(nodes) - len(free))
        return free

    def paused(self, server_round: int) -> Collection[int]:
        """Return the client ids of those left out of a round."""
        return {i for i, (_, until) in self._erring.items() if until >= server_round}

    def first_errors(self, screening: Screening) -> int:
        """Return how many clients raised an error in this round that did not err before."""
        failed = (r.node.client_id for r in screening.refused if r.status == "failed")
        return sum(client_id not in self._erring for client_id in failed)

    def update(
        self,
        server_round: int,
        screening: Screening,
        asked: Collection[ClientNode],
        online: Sequence[ClientNode],
        *,
        failed: str,
    ) -> None:
        """Take in a round; ``failed`` says why it made no model of its usable replies, if so.

        Raises
        ------
        TrainingFailedError
            If most members fail, or if too many rounds in a row failed on the server's side.
        """
        usable = {reply.node.client_id for reply in screening.accepted}
        late = {reply.node for reply in screening.refused if reply.status == "late"}
        asked = [node for node in asked if node not in late]  # Slow members do not err.
        if not asked:
            return
        turn = math.ceil(len(online) / len(asked))
        erred = [node.client_id for node in asked if node.client_id not in usable]
        for client_id in usable:
            self._erring.pop(client_id, None)
        for client_id in erred:
            errors = self._erring.get(client_id, (0, 0))[0] + 1
            turns = min(2 ** (errors - 1) - 1, self.max_paused_turns)
            self._erring[client_id] = errors, server_round + turn * turns
        count, before, erred_before = self._poor
        self._poor = _PoorRounds()
        if 2 * len(erred) > len(asked):
            self._poor = _PoorRounds(count + 1, before + len(asked), erred_before + len(erred))
        self._failed_rounds = self._failed_rounds + 1 if failed else 0
        if why := self._why_to_give_up(online):
            first = failed or next((reply.reason for reply in screening.refused), "")
            raise TrainingFailedError(
                f"{why}; the last was round {server_round} with {len(screening.accepted)} valid "
                f"replies of {len(asked)}; first reason: {first}"
            )

    def _why_to_give_up(self, online: Sequence[ClientNode]) -> str:
        failing = {i for i, (errors, _) in self._erring.items() if errors >= self.maximum}
        there = sum(node.client_id in failing for node in online) if failing else 0
        if 2 * there > len(online):
            return (
                f"most members fail: {there} of {len(online)} gave no usable reply in "
                f"{self.maximum} rounds in a row that they were asked in"
            )
        # Long before all of a large federation were asked so often: by four standard deviations,
        # it is not by chance that more than half of those asked err.
        count, asked, erred = self._poor
        if count >= self.maximum and erred > asked / 2 + 2 * asked**0.5:
            return (
                f"most members fail: {erred} of the {asked} asked in {count} rounds in a row gave "
                "no usable reply"
            )
        if self._failed_rounds >= self.maximum:
            return f"{self._failed_rounds} rounds in a row failed"
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        erring = {client_id: list(own) for client_id, own in self._erring.items()}
        return {"erring": erring, "poor": list(self._poor), "failed_rounds": self._failed_rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._erring = {client_id: (own[0], own[1]) for client_id, own in state["erring"].items()}
        self._poor = _PoorRounds(*state["poor"])
        self._failed_rounds = state["failed_rounds"]
