"""``strategy.history``: reports and metrics of each round, as tables."""

from __future__ import annotations

import pytest

from fedif_flower import FedIF
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from fedif_flower.strategies.callbacks import Callback, StopTraining
from tests.strategies.lines import Movers, Threshold, threshold_validation


class Counting(Callback):
    """Says how many rounds there were, ends the run after two, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def on_model(self, server_round, model):
        if server_round == 2:
            raise StopTraining("enough")
        return {"rounds-so-far": float(server_round)}

    def on_metrics(self, server_round, metrics):
        self.told.append((server_round, dict(metrics)))

    def on_round_end(self, server_round):
        self.told.append(server_round)

    def on_end(self):
        self.told.append("end")


def played(counting: Counting | None = None) -> FedIF:
    callbacks = [counting or Counting()]
    strategy = FedIF(
        threshold_validation(),
        fraction_evaluate=0.0,
        callbacks=callbacks,
        setup=Setup(device="cpu"),
    )
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, model_arrays(Threshold()), num_rounds=5)
    return strategy


def test_clients_have_a_line_for_each_round():
    table = played().history.to_pandas()
    assert list(table["round"]) == [1, 1, 1, 2, 2, 2]
    assert list(table["client_id"]) == [1000, 1001, 1002] * 2
    assert table["weight"][:3].sum() == pytest.approx(1.0)
    assert {*table.columns, "malicious"} == set(RunFolder("").clients.columns)


def test_rounds_have_their_metrics():
    table = played().history.to_pandas("rounds")
    assert list(table["round"]) == [0, 1, 2]
    assert list(table["accepted"].fillna(-1)) == [-1, 3, 3]
    assert list(table["rounds-so-far"].fillna(-1)) == [0.0, 1.0, -1]


def test_metrics_and_the_end_are_told_even_where_a_callback_ends_the_run():
    counting = Counting()
    played(counting)
    assert counting.told == [
        *((0, {"rounds-so-far": 0.0}), 0),
        *((1, {"rounds-so-far": 1.0}), 1),
        *((2, {}), 2),
        "end",
    ]


def test_a_round_in_which_a_callback_fails_does_not_end():
    class Failing(Counting):
        def on_model(self, server_round, model):
            if server_round == 1:
                raise RuntimeError("broken")

    counting = Failing()
    with pytest.raises(RuntimeError, match="broken"):
        played(counting)
    assert counting.told == [(0, {}), 0, (1, {}), "end"]
