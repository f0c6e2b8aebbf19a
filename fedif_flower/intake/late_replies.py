"""Replies to earlier rounds count in the round in which they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedif_flower.errors import require
from fedif_flower.intake.intake import Host, Intake, IntakeAround
from fedif_flower.intake.pace import Pace
from fedif_flower.messages.polling_grid import Closing
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.messages.screening import Screening
from fedif_flower.messages.workspace import Arrive, Asked


class LateReplies(IntakeAround):
    """Waits for the replies of members that were too slow for their own round.

    Parameters
    ----------
    inner : Intake
        Screens the replies.
    pace : Pace
        For how many rounds they are waited for, and for how much they count then.
    """

    def __init__(self, inner: Intake, pace: Pace) -> None:
        super().__init__(inner)
        self._pace = pace
        self._missing: dict[int, Asked] = {}  # By node: asked, and not answered yet.

    def require(self, host: Any, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Raise ConfigError where late replies cannot come, or cannot be used."""
        late_rounds = self._pace.late_rounds
        can_come = isinstance(grid, ScreenedGrid) and grid.keeps_late
        words = (
            "0 in a simulation (and no buffered rounds), whose replies are never late, and where "
            "another loop than the strategy's own start sends the messages"
        )
        require(can_come, "late_rounds", late_rounds, words)
        words = "0 with a local method whose clients send more than a model"
        require(self.inner.is_alone, "late_rounds", late_rounds, words)
        super().require(host, grid, initial_arrays)

    def begin(self, host: Host) -> None:
        """Wait for nobody: replies to an earlier run come no more."""
        self._missing = {}
        super().begin(host)

    def outstanding(self, server_round: int) -> Mapping[int, Asked]:
        """Return, by node, whose replies still count in a round, and for how much.

        Updates are steps, from wherever the model is; buffers move towards those that were sent.
        """
        oldest = server_round - self._pace.late_rounds
        self._missing = {
            node_id: question
            for node_id, question in self._missing.items()
            if question.server_round >= oldest
        }
        buffers = self.host.model.vectors.buffers
        discounted: dict[int, Asked] = {}
        for node_id, question in self._missing.items():
            rounds_late = server_round - question.server_round
            factor = self._pace.staleness(rounds_late)
            discounted[node_id] = replace(question, factor=factor, buffers=buffers)
        return discounted

    def take_back(self) -> None:
        """Wait no longer for replies to the model that goes: their updates begin where it is."""
        self._missing = {
            node_id: question
            for node_id, question in self._missing.items()
            if not self.host.model.continues(question.received)
        }
        super().take_back()

    def collect(
        self,
        server_round: int,
        replies: Iterable[Message],
        asked: Mapping[int, Asked],
        closing: Closing,
        arrive: Arrive | None,
    ) -> Screening:
        """Screen a round's replies: who answered is free, who did not in time is waited for."""
        screening = super().collect(server_round, replies, asked, closing, arrive)
        for accepted in screening.accepted:
            self._missing.pop(accepted.node.node_id, None)
        for refused in screening.refused:
            node_id = refused.node.node_id
            self._missing.pop(node_id, None)
            if refused.status == "late":
                self._missing[node_id] = asked[node_id]
        return screening
