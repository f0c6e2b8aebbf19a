from __future__ import annotations

import pytest

from fedif_flower import RFA
from fedif_flower.strategies import RobustRule, Setup
from tests.strategies.lines import Movers, column, play, point

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


def test_rfa_by_hand():
    # Two clients at 0, one at 10: from the mean 10/3 to 2, to 10/9, to 10/17.
    params, (report,) = play(RobustRule(RFA(), **BASE), point(), Movers([[0, 0], [0, 0], [10, 0]]))
    assert params.tolist() == pytest.approx([10 / 17, 0.0])
    assert column(report, "weight") == pytest.approx([8 / 17, 8 / 17, 1 / 17])


def test_rfa_starts_from_fedavgs_weights():
    movers = Movers([[0, 0], [10, 0]], examples=[30, 10])
    _, (report,) = play(RobustRule(RFA(iterations=0), **BASE), point(), movers)
    assert column(report, "weight") == pytest.approx([0.75, 0.25])
