from __future__ import annotations

import pytest
import torch

from fedif_flower.strategies import OracleExclusion, Setup
from tests.strategies.lines import Movers, column, play, point
from tests.strategies.test_registry import config, run

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


def test_the_honest_by_their_examples():
    strategy = OracleExclusion(lambda node: node.node_id == 1001, **BASE)
    movers = Movers([[1.0, 0.0], [9.0, 9.0], [0.0, 1.0]], examples=[10, 50, 30])
    params, (report,) = play(strategy, point(), movers)
    assert column(report, "weight") == [0.25, 0.0, 0.75]
    assert params.tolist() == pytest.approx([0.25, 0.75])


def test_the_model_stays_where_nobody_is_honest():
    params, (report,) = play(
        OracleExclusion(lambda _: True, **BASE), point(), Movers([[1.0, 0.0]] * 2)
    )
    assert column(report, "weight") == [0.0, 0.0]
    assert torch.equal(params, torch.zeros(2))


def test_a_run_tells_it_who_is_malicious(tmp_path):
    _, _, clients = run(config(tmp_path, "oracle", **{"fraction-train": 1.0}))
    assert {(row["malicious"] == "1", float(row["weight"]) == 0.0) for row in clients} == {
        (True, True),
        (False, False),
    }
