"""Stages in real rounds: one of a user's own, and those that the keys of a run config stand for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedif_flower import FedAvg, FedIF
from fedif_flower.stages import LossBound, Stage
from fedif_flower.strategies import Setup
from fedif_flower.strategies.config import configured_stages
from tests.strategies.lines import Movers, Threshold, play, point, threshold_validation
from tests.strategies.named import config

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


class Warmup(Stage):
    """Lets updates of the first rounds count for less: t / rounds of them in round t."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.seen = 0

    def before(self, updates):
        self.seen += 1
        share = min(self.seen / self.rounds, 1.0)
        return replace(updates, factors=share * updates.shortening)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_a_stage_of_ones_own_goes_through_real_rounds():
    strategy = FedAvg(stages=[Warmup(2)], **BASE)
    params, reports = play(strategy, point(), Movers([[4.0, 8.0]] * 3), rounds=3)
    # Half of the first step, then all of it.
    assert params.tolist() == pytest.approx([4 * 2.5, 8 * 2.5])
    assert not any(report.failed for report in reports)
    other = FedAvg(stages=[Warmup(2)], **BASE)
    other.load_state_dict(strategy.state_dict())
    params, _ = play(other, point(), Movers([[4.0, 8.0]] * 3), rounds=1)
    assert params.tolist() == pytest.approx([4, 8])


def test_strategies_that_score_bound_lengths_and_loss_by_default():
    strategy = FedIF(threshold_validation(), **BASE)
    assert repr(strategy.stages) == "[Clip(multiple=2.0), LossBound(tolerance=0.1)]"
    play(strategy, Threshold(), Movers([[1.0], [1.0]]))
    bound = list(strategy.stages)[1]
    assert isinstance(bound, LossBound)
    assert bound.validation is strategy.validation
    assert list(FedIF(threshold_validation(), stages=(), **BASE).stages) == []
    assert list(FedAvg(**BASE).stages) == []


@pytest.mark.parametrize(
    ("strategy", "keys", "expected"),
    [
        ("fedif", {}, "[Clip(multiple=2.0), LossBound(tolerance=0.1)]"),
        ("shapfed", {}, "[Clip(multiple=2.0)]"),
        ("fedavg", {}, "[]"),
        ("fedif", {"update-clipping": 0.0}, "[]"),
        ("krum", {"update-clipping": 1.5}, "[Clip(multiple=1.5)]"),
        (
            "fedavg",
            {"screen": "fedif_flower.stages:FedAvgM", "FedAvgM.momentum": 0.5},
            "[FedAvgM(momentum=0.5, learning_rate=0.1)]",
        ),
        (
            "fedif",
            {
                "max-update-length": 9.0,
                "neighbour-mixing": True,
                "assumed-malicious-fraction": 0.25,
                "update-clipping": 3.0,
                "server-optimizer": "fedavgm",
            },
            "[MaxLength(max_length=9.0), NearestNeighbours(malicious_fraction=0.25), "
            "Clip(multiple=3.0), LossBound(tolerance=0.1), "
            "FedAvgM(momentum=0.9, learning_rate=0.1)]",
        ),
    ],
)
def test_keys_of_a_run_config_stand_for_stages(tmp_path, strategy, keys, expected):
    assert repr(configured_stages(config(tmp_path, strategy, **keys))) == expected
