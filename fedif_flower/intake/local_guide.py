"""The server's half of a local method: a vector sent with the model, or a guide of the clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

from fedif_flower.errors import ConfigError
from fedif_flower.intake.intake import Host, Intake, IntakeAround, Select
from fedif_flower.local_methods import Guide, LocalMethod, TakenIn, Turn
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import (
    GUIDE_RECORD,
    TAKEN_FACTOR_KEY,
    TAKEN_RECORD,
    TAKEN_ROUND_KEY,
    VECTOR_KEY,
    VECTOR_RECORD,
)
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.messages.text import printable
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.stages.clip import RecentLengths

logger = logging.getLogger(__name__)


class LocalGuide(IntakeAround):
    """Sends a method's vector ``[d]``, as SCAFFOLD's, and lets its guide tell clients how to train.

    Clients send changes of the vector. The vector is 0 at first; then it is the sum of the changes
    that were taken in, divided by the number of all members. The changes of all accepted replies
    are taken in, whatever happens to the round's model. With the next model each client is told in
    which round its last change was taken in, and by which factor it was shortened.

    A checkpoint holds all this. A resumed run goes on with the vector only if :meth:`go_on` is
    called: otherwise the clients have lost their half, and the vector begins at 0 again.

    Parameters
    ----------
    inner : Intake
        The wrapped intake, which screens the replies.
    method : LocalMethod
        The local method, which says by which factors changes are shortened.
    guide : Guide
        The method's guide; a plain Guide, which tells clients nothing, if the method has none.
    """

    may_come_late = False

    def __init__(self, inner: Intake, method: LocalMethod, guide: Guide) -> None:
        super().__init__(inner)
        self._method = method
        self._guide = guide
        self.reweighs = self.reweighs or guide.weighs
        self._vector: Tensor | None = None  # [d]
        self._num_members = 0  # The number by which the vector's sum of changes is divided.
        self._lengths = RecentLengths()  # Of the clients' changes.
        self._taken_in: dict[int, TakenIn] = {}  # The last change that was taken in, by client id.
        self._saved: Mapping[str, Any] | None = None  # The loaded state, until `go_on` uses it.
        self._round = 0
        self._logged_noisy: frozenset[int] = frozenset()

    def begin(self, host: Host) -> None:
        """Begin a run of the strategy ``host``.

        A strategy that is started again keeps its vector: the clients have kept their half, too.

        Raises
        ------
        ConfigError
            If the guide changes weights, and the strategy gives clients none.
        """
        if self._guide.weighs and (not host.combines_updates or host.stages.makes_groups):
            raise ConfigError(
                f"local_method = {self._method!r}; allowed with {type(host).__name__}, which "
                "gives no client a coefficient: one that changes no weights"
            )
        super().begin(host)

    def go_on(self) -> None:
        """Resume with the saved vector, since the clients have kept their half."""
        if self._saved is not None and self._saved["vector"] is not None:
            self._vector = self._saved["vector"]
            # The checkpoints of earlier versions lack the three keys that follow.
            self._num_members = self._saved.get("num_members", 0)
            self._taken_in = {
                client_id: TakenIn(server_round, factor)
                for client_id, server_round, factor in self._saved.get("taken_in", [])
            }
            self._lengths.load_state_dict(self._saved.get("lengths", {"seen": {}}))
        super().go_on()

    def draw(
        self, select: Select, nodes: Sequence[ClientNode], server_round: int
    ) -> list[ClientNode]:
        """Draw a round's clients by the strategy's ``select``, from those that the guide admits.

        The guide may also ask for all that it admits, without a draw.
        """
        if not nodes:
            return []
        client_ids = [node.client_id for node in nodes]
        try:
            turn = self._guide.choose_members(client_ids, server_round)
        except Exception as error:  # Any error, since it may come from what clients reported.
            _log_unusable(server_round, error)
            turn = Turn(client_ids)
        admitted = frozenset(turn.members)
        allowed = [node for node in nodes if node.client_id in admitted]
        if turn.everyone or not allowed:
            return allowed
        return super().draw(select, allowed, server_round)

    def open(self, server_round: int, members: Sequence[ClientNode], config: ConfigRecord) -> None:
        """Tell the guide which members the round asks, and require the reports that it expects."""
        super().open(server_round, members, config)
        self._round = server_round
        if self._method.sends_vector and self._vector is None:
            self._vector = torch.zeros_like(self.host.model.vectors.params)
        self._log_news()
        self._guide.note_asked([node.client_id for node in members], server_round)
        self.workspace.expect(self._guide.report_lengths(server_round))

    def enclose(self, node: ClientNode) -> Mapping[str, ConfigRecord | ArrayRecord]:
        """Return the vector, what was taken in of this client, and what the guide tells it."""
        content = dict(super().enclose(node))
        if self._vector is not None:
            content[VECTOR_RECORD] = tensor_arrays({VECTOR_KEY: self._vector})
        taken_in = self._taken_in.get(node.client_id)
        if taken_in is not None:
            content[TAKEN_RECORD] = ConfigRecord(
                {TAKEN_ROUND_KEY: taken_in.server_round, TAKEN_FACTOR_KEY: taken_in.factor}
            )
        instructions = self._guide.instruct(node.client_id, self._round)
        if instructions:
            content[GUIDE_RECORD] = ConfigRecord(dict(instructions))
        return content

    def reweigh(self, updates: RoundUpdates, aggregation: Aggregation) -> Aggregation:
        """Return the guide's weights in place of the strategy's, if the guide changes weights."""
        aggregation = super().reweigh(updates, aggregation)
        if not self._guide.weighs:
            return aggregation
        return replace(aggregation, weights=self._guide.reweigh(updates, aggregation.weights))

    def close(self, server_round: int, accepted: Sequence[ClientNode], *, stepped: bool) -> None:
        """Move the vector by the changes of accepted replies; give their reports to the guide."""
        super().close(server_round, accepted, stepped=stepped)
        client_ids = [node.client_id for node in accepted]
        if client_ids and self._vector is not None:
            self._take_in_changes(self._vector, client_ids)
        reports = {name: rows[: len(accepted)] for name, rows in self.workspace.beside.items()}
        try:
            self._guide.take(self._round, client_ids, reports)
        except Exception as error:  # Any error: what clients report must not stop a run.
            _log_unusable(self._round, error)
        self._log_news()

    def _take_in_changes(self, vector: Tensor, client_ids: Sequence[int]) -> None:
        """Move the vector ``[d]`` by the mean change, over all members, of the m accepted clients.

        ``client_ids`` are theirs; the rows of the workspace hold the changes in the same order.
        """
        changes = self.workspace.beside[VECTOR_KEY][: len(client_ids)]  # [m, d]
        lengths = torch.linalg.vector_norm(changes.double(), dim=1)  # [m]
        usual = self._lengths.usual(self._round, client_ids, lengths)
        factors = self._method.shortened(lengths, usual)  # [m]
        num_members = max(len(self.host.nodes.known), len(client_ids))
        if self._num_members and num_members != self._num_members:
            # The number of members has changed: the sum of all changes is divided by the new one.
            vector = vector * (self._num_members / num_members)
        self._vector = vector + (factors / num_members).to(changes) @ changes
        self._num_members = num_members
        for client_id, factor in zip(client_ids, factors.tolist(), strict=True):
            self._taken_in[client_id] = TakenIn(self._round, factor)

    def stateful(self) -> dict[str, Any]:
        """Return the parts that remember earlier rounds, by name."""
        return {"local-guide": self, **super().stateful()}

    def state_dict(self) -> dict[str, Any]:
        """Return the guide's state, the vector, and what was taken in of each client."""
        return {
            "guide": self._guide.state_dict(),
            "vector": self._vector,
            "num_members": self._num_members,
            "lengths": self._lengths.state_dict(),
            "taken_in": [(client_id, *taken_in) for client_id, taken_in in self._taken_in.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the guide's state, and keep the rest for :meth:`go_on`."""
        self._guide.load_state_dict(state["guide"])
        self._saved = state

    def _log_news(self) -> None:
        """Log which clients are taken to have noisy labels, if that has changed."""
        if self._guide.noisy == self._logged_noisy:
            return
        self._logged_noisy = self._guide.noisy
        labels = self.host.nodes.labels(sorted(self._guide.noisy)).values()
        logger.info("round %d: taken to be noisy: %s", self._round, ", ".join(labels) or "nobody")


def _log_unusable(server_round: int, error: Exception) -> None:
    """Log that the guide cannot use what clients reported."""
    logger.error("round %d: the reports cannot be used: %s", server_round, printable(repr(error)))
