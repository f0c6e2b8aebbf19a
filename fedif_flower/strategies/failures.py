"""Members that err: they are asked less often, and the run ends where most of them err."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fedif_flower.client_table import ClientTable
from fedif_flower.errors import TrainingFailedError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screening import Screening

logger = logging.getLogger(__name__)


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
        # Of members that were asked: errors in a row, and the last round in which not to ask again.
        self._members = ClientTable(errors=0, paused_until=0)
        self._poor_rounds = 0  # In a row: most of those asked erred.
        self._failed_rounds = 0  # In a row: enough replies were usable, and yet it made no model.

    def available(
        self, nodes: Sequence[ClientNode], server_round: int, at_least: int
    ) -> list[ClientNode]:
        """Return the nodes that are not paused; all, if those were fewer than ``at_least``."""
        paused = self.paused(server_round)
        free = [n for n in nodes if n.client_id not in paused] if paused else list(nodes)
        if len(free) == len(nodes):
            return free
        if len(free) < at_least:
            return list(nodes)
        logger.info("round %d: %d nodes paused after errors", server_round, len(nodes) - len(free))
        return free

    def paused(self, server_round: int) -> Collection[int]:
        """Return the client ids of those left out of a round; few, however many members err."""
        return self._members.where(self._members.column("paused_until") >= server_round)

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
        late = {reply.node for reply in screening.refused if reply.status == "late"}
        asked = [node for node in asked if node not in late]  # Slow members do not err.
        if not asked:
            return
        turn = math.ceil(len(online) / len(asked))
        asked_ids = [node.client_id for node in asked]
        errors = self._members.read(asked_ids, "errors") + 1
        errors[[i in usable for i in asked_ids]] = 0
        turns = np.minimum(2.0 ** np.clip(errors - 1, 0, 1000) - 1, self.max_paused_turns)
        paused_until = np.where(errors, server_round + turn * turns, 0)
        self._members.write(asked_ids, errors=errors, paused_until=paused_until)
        poor = 2 * len(usable) < len(asked)
        self._poor_rounds = self._poor_rounds + 1 if poor else 0
        self._failed_rounds = self._failed_rounds + 1 if failed else 0
        self._give_up(server_round, screening, len(asked), online)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {
            "members": self._members.state_dict(),
            "poor_rounds": self._poor_rounds,
            "failed_rounds": self._failed_rounds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._members.load_state_dict(state["members"])
        self._poor_rounds = state["poor_rounds"]
        self._failed_rounds = state["failed_rounds"]

    def first_errors(self, screening: Screening) -> int:
        """Return how many clients raised an error in this round that did not err before."""
        failed = [r.node.client_id for r in screening.refused if r.status == "failed"]
        return int((self._members.read(failed, "errors") == 0).sum())

    def _give_up(
        self,
        server_round: int,
        screening: Screening,
        num_asked: int,
        online: Sequence[ClientNode],
    ) -> None:
        has_failing = bool((self._members.column("errors") >= self.maximum).any())
        if not (self._poor_rounds or self._failed_rounds or has_failing):
            return
        tried = [node.client_id for node in online if node.client_id in self._members]
        errors = self._members.read(tried, "errors")
        erring, failing = int((errors > 0).sum()), int((errors >= self.maximum).sum())
        if 2 * failing > len(online):
            why = (
                f"most members fail: {failing} of {len(online)} gave no usable reply in "
                f"{self.maximum} rounds in a row that they were asked in"
            )
        # Long before all of a large federation were asked so often: by four standard deviations,
        # it is not by chance that more than half of those asked so far err.
        elif self._poor_rounds >= self.maximum and erring > len(tried) / 2 + 2 * len(tried) ** 0.5:
            why = (
                f"most members fail: {erring} of the {len(tried)} asked so far gave no usable "
                f"reply, in {self._poor_rounds} rounds in a row most of those asked"
            )
        elif self._failed_rounds >= self.maximum:
            why = f"{self._failed_rounds} rounds in a row failed"
        else:
            return
        first = next((r.reason for r in screening.refused), "the model could not be aggregated")
        raise TrainingFailedError(
            f"{why}; the last was round {server_round} with {len(screening.accepted)} valid "
            f"replies of {num_asked}; first reason: {first}"
        )
