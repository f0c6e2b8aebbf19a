"""The server's half of a local method whose clients are told how to train, as FedNoRo's are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord

from fedif_flower.local_methods import LocalMethod, Turn
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import GUIDE_RECORD
from fedif_flower.messages.screening import AcceptedReply, Workspace
from fedif_flower.messages.text import printable
from fedif_flower.messages.vector_workspace import VectorWorkspace
from fedif_flower.round import Aggregation, RoundUpdates

logger = logging.getLogger(__name__)

Select = Callable[[Sequence[ClientNode], int], list[ClientNode]]


class LocalGuide:
    """Speaks for a method's guide in a round; without one in the method it does nothing.

    Parameters
    ----------
    method : LocalMethod
        Says whether there is one.
    """

    def __init__(self, method: LocalMethod) -> None:
        self._guide = method.guide()

    @property
    def guides(self) -> bool:
        """Whether there is a guide."""
        return self._guide is not None

    @property
    def weighs(self) -> bool:
        """Whether it changes weights, by looking at updates."""
        return self._guide is not None and self._guide.weighs

    def sample(
        self, nodes: Sequence[ClientNode], server_round: int, select: Select
    ) -> list[ClientNode]:
        """Return the round's clients: of those that the guide leaves, those that are drawn."""
        if self._guide is None:
            return select(nodes, server_round) if nodes else []
        before = self._guide.noisy
        ids = [node.client_id for node in nodes]
        try:
            turn = self._guide.turn(ids, server_round)
        except Exception as error:  # as in take
            self._unusable(server_round, error)
            turn = Turn(ids)
        self._remark(server_round, before, nodes)
        members = frozenset(turn.members)
        allowed = [node for node in nodes if node.client_id in members]
        chosen = select(allowed, server_round) if allowed and not turn.everyone else allowed
        self._guide.asked([node.client_id for node in chosen], server_round)
        return chosen

    def expect(self, workspace: Workspace, server_round: int) -> None:
        """Let the workspace require what a round's clients are to report."""
        if self._guide is not None and isinstance(workspace, VectorWorkspace):
            workspace.expect(self._guide.expected(server_round))

    def enclose(self, node: ClientNode, server_round: int) -> Mapping[str, ConfigRecord]:
        """Return what a node's message holds beside the model."""
        if self._guide is None:
            return {}
        told = self._guide.told(node.client_id, server_round)
        return {GUIDE_RECORD: ConfigRecord(dict(told))}

    def weighted(self, updates: RoundUpdates, aggregation: Aggregation) -> Aggregation:
        """Return a round's weights as the guide has them."""
        if self._guide is None or not self._guide.weighs:
            return aggregation
        return replace(aggregation, weights=self._guide.weighted(updates, aggregation.weights))

    def take(
        self, server_round: int, workspace: Workspace, accepted: Sequence[AcceptedReply]
    ) -> None:
        """Let the guide take in what a round's accepted replies reported."""
        if self._guide is None or not isinstance(workspace, VectorWorkspace):
            return
        before = self._guide.noisy
        reports = {name: rows[: len(accepted)] for name, rows in workspace.beside.items()}
        try:
            self._guide.take(server_round, [r.node.client_id for r in accepted], reports)
        except Exception as error:  # reports are the clients' words: they must not stop a run
            self._unusable(server_round, error)
        self._remark(server_round, before, [reply.node for reply in accepted])

    def state_dict(self) -> dict[str, Any]:
        """Return the guide's state."""
        return {} if self._guide is None else self._guide.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        if self._guide is not None:
            self._guide.load_state_dict(state)

    def _unusable(self, server_round: int, error: Exception) -> None:
        reason = printable(repr(error))
        logger.error("round %d: the reports cannot be used: %s", server_round, reason)

    def _remark(
        self, server_round: int, before: frozenset[int], nodes: Sequence[ClientNode]
    ) -> None:
        """Log who is taken to be noisy, where that is news."""
        noisy = frozenset() if self._guide is None else self._guide.noisy
        if noisy != before:
            labels = [node.label for node in nodes if node.client_id in noisy]
            logger.info(
                "round %d: taken to be noisy: %s", server_round, ", ".join(labels) or "nobody"
            )
