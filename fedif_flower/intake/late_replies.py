"""The intake that lets late replies count in the round in which they come."""

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
from fedif_flower.messages.workspace import Arrive, Question


class LateReplies(IntakeAround):
    """Lets replies count that come too late for their own round.

    Parameters
    ----------
    inner : Intake
        The wrapped intake, which screens the replies.
    pace : Pace
        For how many rounds a reply is waited for, and by which factor a late one is multiplied.
    """

    def __init__(self, inner: Intake, pace: Pace) -> None:
        super().__init__(inner)
        self._pace = pace
        self._missing: dict[int, Question] = {}  # By node id, the questions not answered yet.

    def require(self, host: Any, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Raise ConfigError if late replies cannot come in this grid, or cannot be used."""
        late_rounds = self._pace.late_rounds
        words = (
            "0 (and no buffered rounds) where another loop than the strategy's own start sends the "
            "messages"
        )
        require(isinstance(grid, ScreenedGrid), "late_rounds", late_rounds, words)
        words = "0 in a simulation (and no buffered rounds): replies there are never late"
        can_be_late = isinstance(grid, ScreenedGrid) and grid.keeps_late
        require(can_be_late, "late_rounds", late_rounds, words)
        words = "0 with a local method whose clients send more than a model"
        require(self.inner.may_come_late, "late_rounds", late_rounds, words)
        super().require(host, grid, initial_arrays)

    def begin(self, host: Host) -> None:
        """Begin a run without unanswered questions: replies to an earlier run do not come."""
        self._missing = {}
        super().begin(host)

    def outstanding(self, server_round: int) -> Mapping[int, Question]:
        """Return the unanswered questions of earlier rounds whose replies still count, by node.

        Each has the factor by which a reply in this round is multiplied, and the buffers with which
        the reply's buffers are compared. An update of the parameters is a step, which can be added
        to any later model. Buffers are no steps: they move from their present values towards those
        that the reply holds.
        """
        oldest = server_round - self._pace.late_rounds
        self._missing = {
            node_id: question
            for node_id, question in self._missing.items()
            if question.server_round >= oldest
        }
        buffers = self.host.model.vectors.buffers
        discounted: dict[int, Question] = {}
        for node_id, question in self._missing.items():
            rounds_late = server_round - question.server_round
            factor = self._pace.staleness(rounds_late)
            discounted[node_id] = replace(question, factor=factor, buffers=buffers)
        return discounted

    def take_back(self) -> None:
        """Stop waiting for replies that were trained on the model that is taken back."""
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
        asked: Mapping[int, Question],
        closing: Closing,
        arrive: Arrive | None,
    ) -> Screening:
        """Screen a round's replies, and note which members still have to answer.

        A member that has answered may be asked again. One that has not answered in time is waited
        for in later rounds.
        """
        screening = super().collect(server_round, replies, asked, closing, arrive)
        for accepted in screening.accepted:
            self._missing.pop(accepted.node.node_id, None)
        for refused in screening.refused:
            node_id = refused.node.node_id
            self._missing.pop(node_id, None)
            if refused.status == "late":
                self._missing[node_id] = asked[node_id]
        return screening
