"""Other people's clients: their records, their weights, their names for things."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedif_flower import FedAvg, FedIF
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from tests.strategies.hostile import Clients, step_reply
from tests.strategies.lines import BASE, threshold_validation

ZERO = pack_array(np.zeros(1, np.float32))


def run(clients, **settings):
    """Run a round of FedAvg; return Flower's result and the clients' reports."""
    strategy = FedAvg(**BASE | settings)
    result = strategy.start(LocalGrid(clients, 3), ArrayRecord({"w": ZERO}), num_rounds=1)
    return result, strategy.history.rounds[0].clients


def add(step: float, **records: MetricRecord | ConfigRecord):
    """A client that adds ``step`` and replies with these records."""

    def reply(message, context):
        arrays = step_reply(message, step).content["arrays"]
        return Message(RecordDict({"arrays": arrays, **records}), reply_to=message)

    return reply


def test_a_reply_with_further_records_is_accepted_and_handed_on():
    received = []

    def aggregate(records: list[RecordDict], key: str) -> MetricRecord:
        received.append((records[0], key))
        return MetricRecord({"clients": len(records)})

    tutorial = {
        "extra": ConfigRecord({"train_metadata": b"\x80\x04", "names": ["a", "b"]}),
        "metrics": MetricRecord({"num-examples": 10, "train_loss": 0.5}),
        "more": MetricRecord({"histogram": [1, 2, 3]}),
    }
    clients = Clients({0: add(1.0, **tutorial), 1: add(math.nan, **tutorial)})
    result, reports = run(clients, train_metrics_aggr_fn=aggregate)
    assert [client.rejection == "" for client in reports] == [True, True, False]
    assert dict(result.train_metrics_clientapp[1]) == {"clients": 2}
    assert received == [(RecordDict(tutorial), "num-examples")]


def test_a_claim_of_examples_weighs_ten_medians_at_most(caplog):
    clients = Clients({0: add(1.0, m=MetricRecord({"num-examples": 10**6}))})
    result, (liar, *_) = run(clients)
    # The others have 20 and 30 examples and add 2 and 3: the median is 30, the most is 300.
    expected = (1 * 300 + 2 * 20 + 3 * 30) / 350
    assert result.arrays["w"].numpy().item() == pytest.approx(expected, rel=1e-6)
    assert (liar.num_examples, liar.claimed_examples) == (300, 10**6)
    assert f"node 1000: {liar.note}" in caplog.text
    result, _ = run(clients, setup=Setup(max_examples_ratio=0.0, device="cpu"))
    assert result.arrays["w"].numpy().item() == pytest.approx(1.0, rel=1e-3)


class Growing(LocalGrid):
    """One more node is online each time that somebody looks."""

    looks = 0

    def get_node_ids(self):
        self.looks += 1
        return super().get_node_ids()[: self.looks]


def test_the_first_round_waits_for_min_available_nodes_though_the_model_was_evaluated():
    """A server that evaluates the initial model has seen its arrays before round 1."""
    strategy = FedAvg(min_available_nodes=4, min_train_nodes=1, **BASE)
    arrays = ArrayRecord({"w": ZERO})
    strategy.model.receive(arrays)
    strategy.start(Growing(Clients(), 6), arrays, num_rounds=1)
    assert len(strategy.history.rounds[0].clients) == 4


def test_members_are_named_as_the_operator_calls_them(caplog):
    def identify(grid, node_ids):
        return [ClientNode(n - 1000, n, name=f"hospital {n - 999}") for n in node_ids]

    setup = Setup(identify=identify, device="cpu")
    strategy = FedIF(threshold_validation(), **BASE | {"setup": setup})
    clients = Clients({1: add(math.nan, m=MetricRecord({"num-examples": 1}))})
    strategy.start(LocalGrid(clients, 3), ArrayRecord({"weight": ZERO}), num_rounds=1)
    assert "round 1: hospital 2 (node 1001): array 'weight' has NaN or Inf" in caplog.text
    assert list(strategy.weight_scores) == ["hospital 1", "hospital 3"]
    assert list(strategy.weight_scores.values()) == list(strategy.ledger.scores.values())
