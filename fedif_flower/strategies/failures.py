"""Members that err: who is asked less often, and when there is nobody left to go on with."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedif_flower.errors import TrainingFailedError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screening import Screening

logger = logging.getLogger(__name__)


@dataclass
class _Record:
    """How often in a row a member erred, and the last round in which it is not asked."""

    errors: int = 0
    paused_until: int = 0


class MemberFailures:
    """Remembers who gave no usable reply, pauses them, and stops a federation of mostly such.

    A member errs in a round if it was asked and its reply is an error, is refused or does not
    come. After k errors in a row it is not asked for :math:`2^{k-1} - 1` of its turns: none after
    the first error, then 1, 3, 7 and so on. A turn is the number of rounds in which a
    member is asked once on average. One usable reply makes everything good.

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
        self._members: dict[int, _Record] = {}
        self._poor_rounds = 0  # In a row: most of those asked erred.
        self._failed_rounds = 0  # In a row: enough replies were usable, and yet it made no model.

    def available(
        self, nodes: Sequence[ClientNode], server_round: int, at_least: int
    ) -> list[ClientNode]:
        """Return the nodes that are not paused; all, if those were fewer than ``at_least``."""
        # Few members err, however many there are.
        paused = {i for i, m in self._members.items() if m.paused_until >= server_round}
        free = [n for n in nodes if n.client_id not in paused] if paused else list(nodes)
        if len(free) == len(nodes):
            return free
        if len(free) < at_least:
            return list(nodes)
        logger.info("round %d: %d nodes paused after errors", server_round, len(nodes) - len(free))
        return free

    def update(
        self,
        server_round: int,
        screening: Screening,
        asked: Collection[ClientNode],
        online: Sequence[ClientNode],
        *,
        failed: bool,
    ) -> None:
        """Take in a round; ``failed`` says that it made no model of its usable replies.

        Raises
        ------
        TrainingFailedError
            If most members fail, or if too many rounds in a row failed on the server's side.
        """
        usable = {reply.node.client_id for reply in screening.accepted}
        turn = math.ceil(len(online) / len(asked))
        for node in asked:
            if node.client_id in usable:
                self._members[node.client_id] = _Record()
            else:
                errors = self._of(node).errors + 1
                turns = min(2 ** (errors - 1) - 1, self.max_paused_turns)
                self._members[node.client_id] = _Record(errors, server_round + turn * turns)
        poor = 2 * len(usable) < len(asked)
        self._poor_rounds = self._poor_rounds + 1 if poor else 0
        self._failed_rounds = self._failed_rounds + 1 if failed else 0
        self._give_up(server_round, screening, len(asked), online)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {
            "members": {i: [m.errors, m.paused_until] for i, m in self._members.items()},
            "poor_rounds": self._poor_rounds,
            "failed_rounds": self._failed_rounds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._members = {i: _Record(*values) for i, values in state["members"].items()}
        self._poor_rounds = state["poor_rounds"]
        self._failed_rounds = state["failed_rounds"]

    def errors(self, node: ClientNode) -> int:
        """Return how often in a row a member gave no usable reply."""
        return self._of(node).errors

    def first_errors(self, screening: Screening) -> int:
        """Return how many clients raised an error in this round that did not err before."""
        return sum(r.raised and not self.errors(r.node) for r in screening.refused)

    def _has_failing(self) -> bool:
        return any(member.errors >= self.maximum for member in self._members.values())

    def _of(self, node: ClientNode) -> _Record:
        return self._members.get(node.client_id, _Record())

    def _give_up(
        self,
        server_round: int,
        screening: Screening,
        num_asked: int,
        online: Sequence[ClientNode],
    ) -> None:
        if not self._poor_rounds and not self._failed_rounds and not self._has_failing():
            return
        tried = [self._of(node) for node in online if node.client_id in self._members]
        erring = sum(member.errors > 0 for member in tried)
        failing = sum(member.errors >= self.maximum for member in tried)
        last = (
            f"the last was round {server_round} with {len(screening.accepted)} valid replies of "
            f"{num_asked}; first reason: "
            + next((r.reason for r in screening.refused), "the model could not be aggregated")
        )
        if 2 * failing > len(online):
            raise TrainingFailedError(
                f"most members fail: {failing} of {len(online)} gave no usable reply in "
                f"{self.maximum} rounds in a row that they were asked in; {last}"
            )
        # Long before all of a large federation were asked so often: by four standard deviations,
        # it is not by chance that more than half of those asked so far err.
        if self._poor_rounds >= self.maximum and erring > len(tried) / 2 + 2 * len(tried) ** 0.5:
            raise TrainingFailedError(
                f"most members fail: {erring} of the {len(tried)} asked so far gave no usable "
                f"reply, in {self._poor_rounds} rounds in a row most of those asked; {last}"
            )
        if self._failed_rounds >= self.maximum:
            raise TrainingFailedError(f"{self._failed_rounds} rounds in a row failed; {last}")
