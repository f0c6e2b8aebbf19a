"""Flower's own aggregation rules, with replies screened as by every strategy here."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Unpack

import torch
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.messages.layout import ModelVectors
from fedif_flower.messages.screening import AcceptedReply
from fedif_flower.round import Aggregation, largest_counters
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.screened import ScreenedStrategy


class FlowerRule(ScreenedStrategy):
    """Screen and sort the replies, then let one of Flower's strategies aggregate them.

    Its rule sees every array of the model, batch-norm statistics and counters included, as it
    does in Flower itself. Integer arrays take the clients' maximum: a mean of indices, rounded
    down, is none.

    Parameters
    ----------
    inner : flwr.serverapp.strategy.FedAvg
        A strategy whose ``aggregate_train`` is the rule, e.g. ``FedMedian()``.
    **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    keep_arrays = True

    def __init__(self, inner: FlowerFedAvg, **base: Unpack[BaseArguments]) -> None:
        super().__init__(**base)
        if self.update_clipping:
            raise ConfigError(
                f"update-clipping = {self.update_clipping:g}; allowed with Flower's own rules: 0"
            )
        self.inner = inner
        self.inner.weighted_by_key = self.weighted_by_key

    def summary(self) -> None:
        """Log the inner strategy's settings."""
        self.inner.summary()

    def _combine(
        self, server_round: int, accepted: Sequence[AcceptedReply]
    ) -> tuple[ModelVectors, Aggregation]:
        with _cheap_collections():
            arrays, _ = self.inner.aggregate_train(
                server_round, _messages(accepted, self.weighted_by_key, self.layout.constants)
            )
        if arrays is None:
            raise ValuationError(f"{type(self.inner).__name__} made no model of the replies")
        # The rule works coordinate by coordinate: NaN says that no client has a weight of its own.
        weights = torch.full((len(accepted),), float("nan"))
        counters = largest_counters([reply.counters for reply in accepted], weights)
        return replace(self.layout.cast(arrays), counters=counters), Aggregation(weights=weights)


@contextmanager
def _cheap_collections() -> Iterator[None]:
    """Keep the garbage collector off what is alive already.

    Flower calls ``gc.collect`` for every reply that Bulyan or the median unpacks, some 0.2 s each
    beside torch: longer than the rule itself.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _messages(
    accepted: Sequence[AcceptedReply], weighted_by_key: str, constants: Collection[str]
) -> list[Message]:
    """Rebuild replies with nothing in them but arrays to aggregate and the number of examples.

    Constants stay away: the distance between two masks of -inf is NaN.
    """
    messages = []
    for reply in accepted:
        assert reply.arrays is not None  # keep_arrays
        metrics = MetricRecord({weighted_by_key: reply.num_examples})
        arrays = ArrayRecord({k: v for k, v in reply.arrays.items() if k not in constants})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        messages.append(Message(content, reply.node.node_id, MessageType.TRAIN))
    return messages
