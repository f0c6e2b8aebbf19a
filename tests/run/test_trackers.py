"""Trackers, with the real packages: what they hold after a federation."""

from __future__ import annotations

import pytest

from fedif_flower import FedIF
from fedif_flower.errors import ConfigError
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.trackers import Tracker
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from tests.strategies.lines import Movers, Threshold, threshold_validation


def play(*callbacks: Tracker) -> FedIF:
    strategy = FedIF(
        threshold_validation(),
        fraction_evaluate=0.0,
        callbacks=callbacks,
        setup=Setup(device="cpu"),
    )
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(
        grid,
        model_arrays(Threshold()),
        num_rounds=2,
        evaluate_fn=lambda server_round, arrays: {"half": server_round / 2, "odd": float("nan")},
    )
    return strategy


def curves_of_tensorboard(directory) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def check(curves: dict[str, list[tuple[int, float]]], strategy: FedIF) -> None:
    assert curves["round/half"] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert "round/odd" not in curves
    assert curves["round/accepted"] == [(1, 3.0), (2, 3.0)]
    for client_id, weight_score in strategy.ledger.scores.items():
        found = curves[f"members/{client_id}/weight_score"]
        assert [step for step, _ in found] == [1, 2]
        assert found[-1][1] == pytest.approx(weight_score, abs=1e-6)


def test_tensorboard_has_each_round_and_member(tmp_path):
    from fedif_flower.run.trackers.tensorboard import TensorBoardTracker

    strategy = play(TensorBoardTracker(tmp_path / "board"))
    check(curves_of_tensorboard(tmp_path / "board"), strategy)


class Broken(Tracker):
    """A place that is away after its first call."""

    calls = 0

    def log(self, server_round, values):
        self.calls += 1
        if self.calls > 1:
            raise ConnectionError("away")


def test_a_tracker_that_fails_is_given_up_with_one_warning(caplog):
    broken = Broken()
    strategy = play(broken)
    assert len(strategy.history) == 2
    assert broken.calls == 2
    warnings = [r.getMessage() for r in caplog.records if r.name.endswith("tracker")]
    assert warnings == ["Broken is given up: ConnectionError('away')"]


def run_config(tmp_path, **overrides) -> RunConfig:
    short = {"num-clients": 4, "fraction-train": 0.5, "num-server-rounds": 1, "run-name": "run"}
    place = {"output-dir": str(tmp_path), "device": "cpu", "local-epochs": 1}
    return RunConfig.from_run_config(default_run_config() | short | place | overrides)


def test_an_unknown_tracker_is_named_before_anything_begins(tmp_path):
    with pytest.raises(ConfigError, match=r"trackers = 'tensorboard, wandb'; allowed: tensorboard"):
        run_config(tmp_path, trackers="tensorboard, wandb")
