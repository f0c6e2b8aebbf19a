"""The server's half of a local method: a vector beside the model, or a guide of the clients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedif_flower.local_methods import LocalMethod, Turn
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import GUIDE_RECORD, VECTOR_RECORD
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.screening import AcceptedReply, Workspace
from fedif_flower.messages.text import printable
from fedif_flower.messages.vector_workspace import VectorWorkspace, vector_record
from fedif_flower.round import Aggregation, RoundUpdates

logger = logging.getLogger(__name__)

Select = Callable[[Sequence[ClientNode], int], list[ClientNode]]


class LocalPart:
    """Speaks for a local method in a round; for plain SGD it does nothing.

    A method may send a vector ``[d]`` beside the model, as SCAFFOLD does, 0 at first; its guide may
    tell clients how to train, as FedNoRo's does.

    Parameters
    ----------
    method : LocalMethod
        Says what there is, and how the vector moves.
    """

    def __init__(self, method: LocalMethod) -> None:
        self._method = method
        self._guide = method.guide()
        self._vector: Tensor | None = None
        self._workspace: VectorWorkspace | None = None

    @property
    def has_vector(self) -> bool:
        """Whether a vector travels beside the model."""
        return self._method.sends_vector

    @property
    def guides(self) -> bool:
        """Whether there is a guide."""
        return self._guide is not None

    @property
    def weighs(self) -> bool:
        """Whether it changes weights, by looking at updates."""
        return self._guide is not None and self._guide.weighs

    def workspace(self, layout: ParameterLayout) -> Workspace:
        """Return room for updates, and for what replies hold beside them."""
        if not (self.has_vector or self.guides):
            return Workspace(layout)
        self._workspace = VectorWorkspace(layout, has_vector=self.has_vector)
        return self._workspace

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
            _unusable(server_round, error)
            turn = Turn(ids)
        self._remark(server_round, before, nodes)
        members = frozenset(turn.members)
        allowed = [node for node in nodes if node.client_id in members]
        chosen = select(allowed, server_round) if allowed and not turn.everyone else allowed
        self._guide.asked([node.client_id for node in chosen], server_round)
        return chosen

    def enclose(self, content: RecordDict, params: Tensor, server_round: int) -> None:
        """Put the vector beside the model, whose parameters are ``params`` [d], for everybody."""
        if self.has_vector:
            if self._vector is None:
                self._vector = params.new_zeros(params.shape)
            content[VECTOR_RECORD] = vector_record(self._vector)
        if self._guide is not None and self._workspace is not None:
            self._workspace.expect(self._guide.expected(server_round))

    def told(self, node: ClientNode, server_round: int) -> Mapping[str, ConfigRecord]:
        """Return what a node's message holds beside the model, for it alone."""
        if self._guide is None:
            return {}
        return {GUIDE_RECORD: ConfigRecord(dict(self._guide.told(node.client_id, server_round)))}

    def weighted(self, updates: RoundUpdates, aggregation: Aggregation) -> Aggregation:
        """Return a round's weights as the guide has them."""
        if self._guide is None or not self._guide.weighs:
            return aggregation
        return replace(aggregation, weights=self._guide.weighted(updates, aggregation.weights))

    def take(self, server_round: int, accepted: Sequence[AcceptedReply]) -> None:
        """Let the guide take in what a round's accepted replies reported."""
        if self._guide is None or self._workspace is None:
            return
        before = self._guide.noisy
        reports = {name: rows[: len(accepted)] for name, rows in self._workspace.beside.items()}
        try:
            self._guide.take(server_round, [r.node.client_id for r in accepted], reports)
        except Exception as error:  # reports are the clients' words: they must not stop a run
            _unusable(server_round, error)
        self._remark(server_round, before, [reply.node for reply in accepted])

    def advance(self, accepted: int, members: int) -> None:
        """Move the vector by what a round's accepted replies sent."""
        if self._workspace is not None and self._vector is not None:
            changes = self._workspace.vectors[:accepted]
            share = accepted / max(accepted, members)
            self._vector = self._method.moved(self._vector, changes, share)

    def restart(self) -> None:
        """Begin with the vector 0 again: with a run, and where a model was taken back.

        No checkpoint keeps it: clients lose their half with the process that ran them.
        """
        self._vector = None

    def state_dict(self) -> dict[str, Any]:
        """Return the guide's state."""
        return {} if self._guide is None else self._guide.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        if self._guide is not None:
            self._guide.load_state_dict(state)

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


def _unusable(server_round: int, error: Exception) -> None:
    reason = printable(repr(error))
    logger.error("round %d: the reports cannot be used: %s", server_round, reason)
