"""``strategy.history``: reports and metrics of each round, as tables; and what callbacks see."""

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
    """Says how many rounds there were, raises in one of them, and notes what it is told."""

    def __init__(self, error: Exception, in_round: int) -> None:
        self.told: list[object] = []
        self.error, self.in_round = error, in_round

    def on_model(self, server_round, model):
        if server_round == self.in_round:
            raise self.error
        return {"rounds-so-far": float(server_round)}

    def on_metrics(self, server_round, metrics):
        self.told.append((server_round, dict(metrics)))

    def on_round_end(self, server_round):
        self.told.append(server_round)

    def on_end(self):
        self.told.append("end")


def played(counting: Counting) -> FedIF:
    setup = Setup(device="cpu")
    strategy = FedIF(
        threshold_validation(), fraction_evaluate=0.0, callbacks=[counting], setup=setup
    )
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, model_arrays(Threshold()), num_rounds=5)
    return strategy


def test_rounds_and_clients_are_tables_though_a_callback_ended_the_run():
    counting = Counting(StopTraining("enough"), in_round=2)
    history = played(counting).history
    clients = history.to_pandas()
    assert list(clients["round"]) == [1, 1, 1, 2, 2, 2]
    assert list(clients["client_id"]) == [1000, 1001, 1002] * 2
    assert clients["weight"][:3].sum() == pytest.approx(1.0)
    assert {*clients.columns, "malicious"} == set(RunFolder("").clients.columns)
    rounds = history.to_pandas("rounds")
    assert list(rounds["round"]) == [0, 1, 2]
    assert list(rounds["accepted"].fillna(-1)) == [-1, 3, 3]
    assert list(rounds["rounds-so-far"].fillna(-1)) == [0.0, 1.0, -1]
    first, second = (0, {"rounds-so-far": 0.0}), (1, {"rounds-so-far": 1.0})
    assert counting.told == [first, 0, second, 1, (2, {}), 2, "end"]


def test_a_round_in_which_a_callback_fails_does_not_end():
    counting = Counting(RuntimeError("broken"), in_round=1)
    with pytest.raises(RuntimeError, match="broken"):
        played(counting)
    assert counting.told == [(0, {"rounds-so-far": 0.0}), 0, (1, {}), "end"]
