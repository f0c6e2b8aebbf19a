"""The loop around a strategy: the user's evaluation, callbacks, early ends, what is recorded."""

from __future__ import annotations

import logging

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord

from fedif_flower import FedAvg, FedIF
from fedif_flower.local_methods import Guide, LocalMethod
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import Aggregation
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import FedAvgM
from fedif_flower.strategies import Setup
from fedif_flower.strategies.callbacks import Callback, StopTraining
from tests.strategies.hostile import alike, one_more
from tests.strategies.lines import (
    BASE,
    Movers,
    Threshold,
    column,
    play,
    point,
    threshold_validation,
    validation,
)


def value(arrays: ArrayRecord) -> float:
    return round(arrays["weight"].numpy().item(), 4)  # Thirds do not sum to 1 exactly.


def start(*callbacks: Callback, completed: int = 0, rounds: int = 3, **started):
    """Three clients that add 1 in each round."""
    strategy = FedAvg(callbacks=callbacks, **BASE)
    strategy.completed_rounds = completed
    grid = LocalGrid(alike(one_more), 3)
    return strategy.start(grid, model_arrays(point(1)), num_rounds=rounds, **started)


class Watching(Callback):
    def on_model(self, server_round, model):
        return {"value": value(model.record)}


def test_rounds_of_a_resumed_run_go_on_counting():
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"found": value(arrays)})

    result = start(Watching(), rounds=2, completed=5, evaluate_fn=evaluate)
    found = {t: dict(metrics) for t, metrics in result.evaluate_metrics_serverapp.items()}
    assert found == {6: {"found": 1.0, "value": 1.0}, 7: {"found": 2.0, "value": 2.0}}


def test_an_evaluation_that_fails_on_one_model_takes_it_back():
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if 1.5 < value(arrays) < 2.5 and server_round < 3:
            raise IndexError("this one I cannot evaluate")
        return MetricRecord({"found": value(arrays)})

    result = start(evaluate_fn=evaluate)
    found = [m["found"] for m in result.evaluate_metrics_serverapp.values()]
    # Round 2's model is undone, and round 3 makes it again.
    assert found == [0.0, 1.0, 1.0, 2.0]
    assert value(result.arrays) == 2.0


def test_an_evaluation_that_always_fails_ends_nothing_and_blames_nobody():
    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            raise OSError("the tracker is gone")

    assert value(start(evaluate_fn=evaluate).arrays) == 3.0


class Nobody(FedAvg):
    """Gives nobody any weight."""

    def weigh(self, updates):
        return Aggregation(weights=0 * updates.num_examples)


@pytest.mark.parametrize(
    ("strategy", "steps", "status", "reason"),
    [
        (FedAvg(**BASE), [0.0, 0.0], "failed", "no accepted reply changes the model"),
        (FedIF(validation(), **BASE), [0.0] * 2, "failed", "no accepted reply changes the model"),
        (Nobody(**BASE), [1.0, 2.0], "kept", "every accepted update has weight 0"),
        (FedAvg(**BASE), [1.0, -1.0], "failed", "the accepted updates cancel"),
    ],
)
def test_each_way_of_leading_nowhere_has_its_reason_and_the_run_goes_on(
    strategy, steps, status, reason, caplog
):
    params, reports = play(strategy, point(), Movers([[step, step] for step in steps]), rounds=5)
    assert params.tolist() == [0.0, 0.0]
    assert [report.status for report in reports] == [status] * 5  # Beyond max_failed_rounds.
    assert all(report.reason.startswith(reason) for report in reports)
    assert caplog.text.count(reason) == 5
    scores = [0.0] * 2 if isinstance(strategy, FedIF) else [None] * 2
    assert column(reports[0], "score") == scores  # Which are recorded all the same.


def test_a_model_that_momentum_moves_on_does_not_stand_still():
    strategy = FedAvg(stages=[FedAvgM(0.5, 0.5)], **BASE)
    led_to, _ = play(strategy, point(), Movers([[1.0, 0.0]] * 2))
    goes_on = point()
    torch.nn.utils.vector_to_parameters(led_to, goes_on.parameters())
    params, (report,) = play(strategy, goes_on, Movers([[0.0, 0.0]] * 2))
    assert not report.failed
    assert (led_to.tolist(), params.tolist()) == ([0.5, 0.0], [0.75, 0.0])


class Failing(Guide, LocalMethod):
    """Raises whenever it is asked for what depends on reports."""

    def guide(self) -> Guide:
        return self

    def turn(self, members, server_round):
        raise ValueError("nothing can be fitted")

    def take(self, server_round, client_ids, reports):
        raise ZeroDivisionError("nobody reported")


def test_a_guide_that_fails_stops_no_round(caplog):
    strategy = FedAvg(**BASE | {"setup": Setup(device="cpu", local_method=Failing())})
    with caplog.at_level(logging.ERROR):
        params, reports = play(strategy, point(), Movers([[1, 0], [3, 0]]), rounds=2)
    assert params.tolist() == [4.0, 0.0]
    assert [column(report, "status") for report in reports] == [["accepted"] * 2] * 2
    assert sum("reports cannot be used" in message for message in caplog.messages) == 4


class Counting(Callback):
    """Says how many rounds there were, raises in one of them, and notes what it is told."""

    def __init__(self, error: Exception, in_round: int) -> None:
        self.noted: list[object] = []
        self.error, self.in_round = error, in_round

    def on_model(self, server_round, model):
        if server_round == self.in_round:
            raise self.error
        return {"rounds-so-far": float(server_round)}

    def on_metrics(self, server_round, metrics):
        self.noted.append((server_round, dict(metrics)))

    def on_round_end(self, server_round):
        self.noted.append(server_round)

    def on_end(self):
        self.noted.append("end")


def played(counting: Counting) -> FedIF:
    strategy = FedIF(threshold_validation(), callbacks=[counting], **BASE)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, model_arrays(Threshold()), num_rounds=5)
    return strategy


def test_rounds_and_clients_are_tables_though_a_callback_ended_the_run():
    counting = Counting(StopTraining("enough"), in_round=2)
    history = played(counting).history
    clients = history.to_pandas()
    assert list(clients["round"]) == [1, 1, 1, 2, 2, 2]
    assert list(clients["client_id"]) == [1000, 1001, 1002] * 2
    assert {*clients.columns, "malicious"} == set(RunFolder("").clients.columns)
    rounds = history.to_pandas("rounds")
    assert list(rounds["round"]) == [0, 1, 2]
    assert list(rounds["accepted"].fillna(-1)) == [-1, 3, 3]
    assert list(rounds["rounds-so-far"].fillna(-1)) == [0.0, 1.0, -1]
    first, second = (0, {"rounds-so-far": 0.0}), (1, {"rounds-so-far": 1.0})
    assert counting.noted == [first, 0, second, 1, (2, {}), 2, "end"]


def test_a_round_in_which_a_callback_fails_does_not_end():
    counting = Counting(RuntimeError("broken"), in_round=1)
    with pytest.raises(RuntimeError, match="broken"):
        played(counting)
    assert counting.noted == [(0, {"rounds-so-far": 0.0}), 0, (1, {}), "end"]
