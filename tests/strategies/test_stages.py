"""Stages in real rounds: one of a user's own, and those that the keys of a run config stand for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedif_flower import FedAvg, FedIF
from fedif_flower.errors import ConfigError
from fedif_flower.stages import Stage
from fedif_flower.strategies.config import configured_stages
from tests.strategies.lines import BASE, Movers, play, point, threshold_validation
from tests.strategies.named import config


class Warmup(Stage):
    """Lets updates of the first rounds count for less: t / 2 of them in round t."""

    seen = 0

    def before(self, updates):
        self.seen += 1
        return replace(updates, factors=min(self.seen / 2, 1.0) * updates.shortening)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_a_stage_of_ones_own_goes_through_real_rounds():
    strategy = FedAvg(stages=[Warmup()], **BASE)
    params, _ = play(strategy, point(), Movers([[4.0, 8.0]] * 3), rounds=3)
    # Half of the first step, then all of it.
    assert params.tolist() == pytest.approx([4 * 2.5, 8 * 2.5])
    other = FedAvg(stages=[Warmup()], **BASE)
    other.load_state_dict(strategy.state_dict())
    params, _ = play(other, point(), Movers([[4.0, 8.0]] * 3))
    assert params.tolist() == pytest.approx([4, 8])


MANY_KEYS = {
    "max-update-length": 9.0,
    "neighbour-mixing": True,
    "assumed-malicious-fraction": 0.25,
    "update-clipping": 3.0,
    "server-optimizer": "fedavgm",
}
MANY = (
    "[MaxLength(max_length=9.0), NearestNeighbours(malicious_fraction=0.25), Clip(multiple=3.0), "
    "LossBound(tolerance=0.1), FedAvgM(momentum=0.9, learning_rate=0.1)]"
)
OWN_SCREEN = {"screen": "fedif_flower.stages:FedAvgM", "FedAvgM.momentum": 0.5}


@pytest.mark.parametrize(
    ("strategy", "keys", "expected"),
    [
        ("fedif", {}, repr(FedIF(threshold_validation(), **BASE).stages)),
        ("shapfed", {}, "[Clip(multiple=2.0)]"),
        ("fedavg", {}, repr(FedAvg(**BASE).stages)),
        ("fedif", {"update-clipping": 0.0}, "[]"),
        ("krum", {"update-clipping": 1.5}, "[Clip(multiple=1.5)]"),
        ("fedavg", OWN_SCREEN, "[FedAvgM(momentum=0.5, learning_rate=0.1)]"),
        ("fedif", MANY_KEYS, MANY),
    ],
)
def test_keys_of_a_run_config_stand_for_stages(tmp_path, strategy, keys, expected):
    assert repr(configured_stages(config(tmp_path, strategy, **keys))) == expected


def test_a_run_config_that_cannot_be_attributed_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"attribution.*'off' with server-optimizer 'fedyogi'"):
        config(tmp_path, "fedavg", **{"server-optimizer": "fedyogi", "attribution": "simpson"})
