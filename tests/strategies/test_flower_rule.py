"""Any of Flower's strategies behind our screening: the model is the one that Flower makes."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp import strategy as flower

from fedif_flower.errors import ConfigError
from fedif_flower.messages.arrays import pack_array
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import FlowerRule, Setup
from tests.strategies.hostile import HOSTILE, Clients, spoiled_reply

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


def values(strategy, clients=None, num_clients=5, rounds=2) -> np.ndarray:
    arrays = ArrayRecord({"w": pack_array(np.float32([0, 4]))})
    result = strategy.start(LocalGrid(clients or Clients(), num_clients), arrays, num_rounds=rounds)
    return result.arrays["w"].numpy()


@pytest.mark.parametrize("rule", [flower.FedMedian, flower.FedAdam])
def test_the_model_is_flowers_own_beside_a_client_that_sends_nan(rule):
    hostile = Clients({5: lambda message, _: spoiled_reply(message, HOSTILE["nan"])})
    expected = values(rule(fraction_evaluate=0.0))
    screened = FlowerRule(rule(), **BASE)
    np.testing.assert_allclose(values(screened, hostile, 6), expected, rtol=1e-5)
    assert [report.failed for report in screened.history.rounds] == [False, False]


def test_what_a_rule_raises_fails_the_round_and_keeps_the_model():
    class Broken(flower.FedAdam):
        def aggregate_train(self, server_round, replies):
            if server_round == 2:
                raise KeyError("boom")
            return super().aggregate_train(server_round, replies)

    strategy = FlowerRule(Broken(), **BASE)
    assert np.isfinite(values(strategy, rounds=3)).all()
    assert [report.failed for report in strategy.history.rounds] == [False, True, False]


def test_what_cannot_work_is_refused_at_construction():
    with pytest.raises(ConfigError, match=r"inner = FedXgbBagging.*it aggregates trees"):
        FlowerRule(flower.FedXgbBagging())
