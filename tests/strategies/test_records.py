"""Other people's clients: their records, their weights, their names for things."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from fedif_flower import FedAvg, strategies
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from tests.strategies.hostile import Clients, step_reply
from tests.strategies.lines import threshold_validation


def zeros(size: int = 1) -> ArrayRecord:
    return ArrayRecord({"w": pack_array(np.zeros(size, np.float32))})


def run(clients, num_nodes=3, rounds=1, **settings):
    """Run FedAvg, or ``strategy``; return Flower's result and the reports."""
    base = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}
    strategy = FedAvg(**base | settings)
    result = strategy.start(LocalGrid(clients, num_nodes), zeros(), num_rounds=rounds)
    return result, strategy.history.rounds


def add(step: float, **records: MetricRecord | ConfigRecord):
    """A client that adds ``step`` and replies with these records."""

    def reply(message, context):
        arrays = step_reply(message, step).content["arrays"]
        return Message(RecordDict({"arrays": arrays, **records}), reply_to=message)

    return reply


def test_a_reply_with_further_records_is_accepted_and_handed_on():
    received = []

    def aggregate(records: list[RecordDict], key: str) -> MetricRecord:
        received.append((records, key))
        return MetricRecord({"clients": len(records)})

    tutorial = {
        "extra": ConfigRecord({"train_metadata": b"\x80\x04", "names": ["a", "b"]}),
        "metrics": MetricRecord({"num-examples": 10, "train_loss": 0.5}),
        "more": MetricRecord({"histogram": [1, 2, 3]}),
    }
    clients = Clients({0: add(1.0, **tutorial), 1: add(math.nan, **tutorial)})
    result, reports = run(clients, train_metrics_aggr_fn=aggregate)
    assert [client.rejection == "" for client in reports[0].clients] == [True, True, False]
    assert dict(result.train_metrics_clientapp[1]) == {"clients": 2}
    ((records, key),) = received
    assert key == "num-examples"
    first = records[0]
    assert dict(first.config_records["extra"]) == dict(tutorial["extra"])
    assert [dict(m) for m in first.metric_records.values()] == [
        {"num-examples": 10, "train_loss": 0.5},
        {"histogram": [1, 2, 3]},
    ]


def test_a_claim_of_examples_weighs_ten_medians_at_most(caplog):
    clients = Clients({0: add(1.0, m=MetricRecord({"num-examples": 10**6}))})
    result, reports = run(clients)
    # The others have 20 and 30 examples and add 2 and 3: the median is 30, the most is 300.
    expected = (1 * 300 + 2 * 20 + 3 * 30) / 350
    assert result.arrays["w"].numpy().item() == pytest.approx(expected, rel=1e-6)
    liar = reports[0].clients[0]
    assert (liar.num_examples, liar.claimed_examples) == (300, 10**6)
    assert liar.note == "num-examples is 1e+06, more than 10 times the round's median of 30: " + (
        "counts as 300"
    )
    assert f"node 1000: {liar.note}" in caplog.text
    result, _ = run(clients, setup=Setup(max_examples_ratio=0.0, device="cpu"))
    assert result.arrays["w"].numpy().item() == pytest.approx(1.0, rel=1e-3)


def test_nobody_trained_longer_than_the_round_took():
    clients = Clients({0: add(1.0, m=MetricRecord({"num-examples": 9, "train-seconds": 1e6}))})
    result, reports = run(clients)
    assert reports[0].clients[0].train_seconds is None
    assert "train-seconds" in reports[0].clients[0].note
    assert "train-seconds" not in result.train_metrics_clientapp[1]


FLOWERS = (0.5, 0.0, 1, 1, 1, "n", "model", "settings", None, None)
NAMES = (
    *("fraction_train", "fraction_evaluate", "min_train_nodes", "min_evaluate_nodes"),
    *("min_available_nodes", "weighted_by_key", "arrayrecord_key", "configrecord_key"),
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: strategies.FedAvg(*FLOWERS),  # Flower's own order.
        lambda: strategies.FedIF(threshold_validation(), **dict(zip(NAMES, FLOWERS, strict=False))),
    ],
)
def test_flowers_arguments(make):
    strategy, flowers = make(), FlowerFedAvg(*FLOWERS)
    assert [getattr(strategy, n) for n in NAMES] == [getattr(flowers, n) for n in NAMES]


def test_what_no_base_takes_is_refused():
    with pytest.raises(TypeError, match="fraction_trian"):
        strategies.FedIF(threshold_validation(), fraction_trian=0.5)


class Growing(LocalGrid):
    """One more node is online each time that somebody looks."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.looks = 0

    def get_node_ids(self):
        self.looks += 1
        return super().get_node_ids()[: self.looks]


def test_the_first_round_waits_for_min_available_nodes_though_the_model_was_evaluated():
    """A server that evaluates the initial model has seen its arrays before round 1."""
    base = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}
    strategy = FedAvg(min_available_nodes=4, min_train_nodes=1, **base)

    def evaluate(server_round, arrays):
        strategy.model.receive(arrays)

    grid = Growing(Clients(), 6)
    strategy.start(grid, zeros(), num_rounds=1, evaluate_fn=evaluate)
    assert len(strategy.history.rounds[0].clients) == 4


def test_members_are_named_as_the_operator_calls_them(caplog):
    def identify(grid, node_ids):
        return [ClientNode(n - 1000, n, name=f"hospital {n - 999}") for n in node_ids]

    strategy = strategies.FedIF(
        threshold_validation(), fraction_evaluate=0.0, setup=Setup(identify=identify, device="cpu")
    )
    clients = Clients({1: add(math.nan, m=MetricRecord({"num-examples": 1}))})
    arrays = ArrayRecord({"weight": pack_array(np.zeros((1,), np.float32))})
    strategy.start(LocalGrid(clients, 3), arrays, num_rounds=1)
    assert "round 1: hospital 2 (node 1001): array 'weight' has NaN or Inf" in caplog.text
    assert list(strategy.weight_scores) == ["hospital 1", "hospital 3"]
    assert list(strategy.weight_scores.values()) == list(strategy.ledger.scores.values())
