"""The server's half of a local method: a vector beside the model, or a guide of the clients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import Guide, LocalMethod, Turn
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import GUIDE_RECORD, VECTOR_KEY, VECTOR_RECORD
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.messages.text import printable
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.server.callbacks import Callback, Question, RunningStrategy
from fedif_flower.server.record import RoundReport
from fedif_flower.server.steps import Step

logger = logging.getLogger(__name__)

Select = Callable[[Sequence[ClientNode], int], list[ClientNode]]


class LocalPart(Callback):
    """Sends a method's vector ``[d]``, as SCAFFOLD's, and lets its guide tell clients how to train.

    The vector is 0 at first, and again where a model was taken back. Its state has the vector, but
    a run goes on with it only by :meth:`go_on`: elsewhere clients have lost their half with the run
    that stopped.

    Parameters
    ----------
    method : LocalMethod
        Says how the vector moves.
    guide : Guide
        The method's own; one that tells nobody anything where it has none.
    """

    _strategy: RunningStrategy  # From on_start on.

    def __init__(self, method: LocalMethod, guide: Guide) -> None:
        self._method, self._guide = method, guide
        self._vector: tuple[Tensor, ModelVectors] | None = None  # And the model that it is beside.
        self._saved: Tensor | None = None  # The vector of the run that goes on.
        self._round = 0
        self._noisy: frozenset[int] = frozenset()  # As the log has it.

    @classmethod
    def of(cls, method: LocalMethod) -> Self | None:
        """Return the server's half of a method; ``None`` where it has none, as plain SGD."""
        guide = method.guide()
        return cls(method, guide or Guide()) if method.sends_vector or guide else None

    def on_start(self, strategy: RunningStrategy) -> None:
        """Begin with the vector 0.

        Raises
        ------
        ConfigError
            If the guide needs coefficients, and the strategy gives none.
        """
        if self._guide.weighs and (not strategy.combines_updates or strategy.stages.make_groups):
            raise ConfigError(
                f"local_method = {self._method!r}; allowed with {type(strategy).__name__}, which "
                "gives no client a coefficient: one that changes no weights"
            )
        self._strategy, self._vector = strategy, None

    def go_on(self) -> None:
        """Go on with the saved vector: clients have kept their half; called after on_start."""
        if self._saved is not None:
            self._vector = self._saved, self._strategy.model.vectors

    def choose(
        self, select: Select, nodes: Sequence[ClientNode], server_round: int
    ) -> list[ClientNode]:
        """Draw a round's clients, by the strategy's own rule, from those that the guide leaves."""
        ids = [node.client_id for node in nodes]
        try:
            turn = self._guide.turn(ids, server_round)
        except Exception as error:  # as in on_round
            _unusable(server_round, error)
            turn = Turn(ids)
        members = frozenset(turn.members)
        allowed = [node for node in nodes if node.client_id in members]
        return allowed if turn.everyone or not allowed else select(allowed, server_round)

    def on_asked(self, question: Question) -> None:
        """Let the guide know whom the round asks, and expect what it wants of them."""
        self._round = question.server_round
        model = self._strategy.model
        if self._method.sends_vector and not (self._vector and model.continues(self._vector[1])):
            self._vector = torch.zeros_like(model.vectors.params), model.vectors
        self._remark()
        self._guide.asked([node.client_id for node in question.asked], self._round)
        self._strategy.workspace.expect(self._guide.expected(self._round))

    def enclose(self, node: ClientNode) -> Mapping[str, ConfigRecord | ArrayRecord]:
        """Return the vector, and what the guide tells this client."""
        own: dict[str, ConfigRecord | ArrayRecord] = {}
        if self._vector is not None:
            own[VECTOR_RECORD] = tensor_arrays({VECTOR_KEY: self._vector[0]})
        if told := self._guide.told(node.client_id, self._round):
            own[GUIDE_RECORD] = ConfigRecord(dict(told))
        return own

    def weighted(self, updates: RoundUpdates, aggregation: Aggregation) -> Aggregation:
        """Return a round's weights as the guide has them."""
        if not self._guide.weighs:
            return aggregation
        return replace(aggregation, weights=self._guide.weighted(updates, aggregation.weights))

    def on_round(self, report: RoundReport) -> None:
        """Let the guide take in what a round's accepted replies reported."""
        ids = [c.node.client_id for c in report.clients if c.status == "accepted"]
        reports = {name: rows[: len(ids)] for name, rows in self._strategy.workspace.beside.items()}
        try:
            self._guide.take(self._round, ids, reports)
        except Exception as error:  # reports are the clients' words: they must not stop a run
            _unusable(self._round, error)
        self._remark()

    def on_step(self, step: Step) -> None:
        """Move the vector by what a round's accepted replies sent."""
        if self._vector is None:
            return
        accepted = len(step.nodes)
        share = accepted / max(accepted, len(self._strategy.nodes.known))
        changes = self._strategy.workspace.beside[VECTOR_KEY][:accepted]
        moved = self._method.moved(self._vector[0], changes, share)
        self._vector = moved, self._strategy.model.vectors

    def state_dict(self) -> dict[str, Any]:
        """Return the guide's state, and the vector where it is beside the global model."""
        vector = None
        if self._vector is not None and self._strategy.model.continues(self._vector[1]):
            vector = self._vector[0]
        return {"guide": self._guide.state_dict(), "vector": vector}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._guide.load_state_dict(state["guide"])
        self._saved = state["vector"]

    def _remark(self) -> None:
        """Log who is taken to be noisy, where that is news."""
        if self._guide.noisy != self._noisy:
            self._noisy = self._guide.noisy
            labels = self._strategy.nodes.labels(sorted(self._noisy)).values()
            logger.info(
                "round %d: taken to be noisy: %s", self._round, ", ".join(labels) or "nobody"
            )


def _unusable(server_round: int, error: Exception) -> None:
    logger.error("round %d: the reports cannot be used: %s", server_round, printable(repr(error)))
