"""The loop around a strategy: the user's evaluation, callbacks, early ends, resumed counts."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from fedif_flower import FedAvg
from fedif_flower.messages.arrays import pack_array
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from fedif_flower.strategies.callbacks import Callback, StopTraining
from tests.strategies.hostile import Clients, step_reply


def zero() -> ArrayRecord:
    return ArrayRecord({"w": pack_array(np.zeros(1, np.float32))})


def value(arrays: ArrayRecord) -> float:
    return round(float(arrays["w"].numpy()[0]), 4)  # Thirds do not sum to 1 exactly.


def start(*callbacks: Callback, rounds: int = 3, completed: int = 0, **started):
    """Three clients that add 1 in each round."""
    strategy = FedAvg(fraction_evaluate=0.0, callbacks=callbacks, setup=Setup(device="cpu"))
    strategy.completed_rounds = completed
    clients = Clients(dict.fromkeys(range(3), lambda message, _: step_reply(message, 1.0)))
    return strategy.start(LocalGrid(clients, 3), zero(), num_rounds=rounds, **started)


class Watching(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_round(self, report):
        self.seen.append(("round", report.round))

    def on_model(self, server_round, model):
        self.seen.append(("model", server_round, value(model.record)))
        return {"value": value(model.record)}


def test_callbacks_are_told_of_each_round_and_then_of_its_model():
    watching = Watching()
    result = start(watching, rounds=2)
    assert watching.seen == [
        ("model", 0, 0.0),
        ("round", 1),
        ("model", 1, 1.0),
        ("round", 2),
        ("model", 2, 2.0),
    ]
    assert [m["value"] for m in result.evaluate_metrics_serverapp.values()] == [0.0, 1.0, 2.0]


def test_rounds_of_an_earlier_process_are_counted_in_one_place():
    watching = Watching()
    evaluated: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        evaluated.append(server_round)
        return MetricRecord({"found": value(arrays)})

    result = start(watching, rounds=2, completed=5, evaluate_fn=evaluate)
    assert [entry[1] for entry in watching.seen] == [6, 6, 7, 7]
    assert evaluated == [6, 7]
    assert list(result.evaluate_metrics_serverapp) == [6, 7]
    assert dict(result.evaluate_metrics_serverapp[7]) == {"found": 2.0, "value": 2.0}


def test_a_callback_may_end_the_run_in_good_order():
    class Patience(Callback):
        def on_model(self, server_round, model):
            if server_round == 2:
                raise StopTraining("good enough")

    watching = Watching()
    result = start(watching, Patience(), rounds=9)
    assert [entry[1] for entry in watching.seen if entry[0] == "round"] == [1, 2]
    assert value(result.arrays) == 2.0


def test_an_evaluation_that_fails_on_one_model_takes_it_back():
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if 1.5 < value(arrays) < 2.5 and server_round < 3:
            raise IndexError("this one I cannot evaluate")
        return MetricRecord({"found": value(arrays)})

    result = start(rounds=3, evaluate_fn=evaluate)
    found = [m["found"] for m in result.evaluate_metrics_serverapp.values()]
    # Round 2's model is undone, and round 3 makes it again.
    assert found == [0.0, 1.0, 1.0, 2.0]
    assert value(result.arrays) == 2.0


def test_an_evaluation_that_always_fails_ends_nothing_and_blames_nobody():
    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            raise OSError("the tracker is gone")

    assert value(start(rounds=3, evaluate_fn=evaluate).arrays) == 3.0
