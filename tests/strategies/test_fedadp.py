from __future__ import annotations

import math

import pytest

from fedif_flower import FedAdp
from fedif_flower.strategies import RobustRule, Setup
from tests.strategies.lines import Movers, column, play, point

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


def gompertz(angle: float, alpha: float = 5.0) -> float:
    return alpha * (1 - math.exp(-math.exp(-alpha * (angle - 1))))


def test_fedadp_by_hand():
    # The mean update is (1 + 1 - 1) / 3 along the first axis: angles 0, 0 and pi.
    movers = Movers([[1, 0], [1, 0], [-1, 0]])
    _, (report,) = play(RobustRule(FedAdp(), **BASE), point(), movers)
    factors = [math.exp(gompertz(angle)) for angle in (0.0, 0.0, math.pi)]
    assert column(report, "weight") == pytest.approx([f / sum(factors) for f in factors])
    assert column(report, "weight_score") == pytest.approx([0.0, 0.0, -math.pi], abs=1e-6)


def test_fedadp_counts_examples_and_remembers_angles():
    strategy = RobustRule(FedAdp(alpha=1.0), **BASE)
    movers = Movers([[1, 0], [0, 1]], examples=[30, 10])
    _, reports = play(strategy, point(), movers, rounds=2)
    # The mean update is (3, 1) / 4.
    angles = [math.atan2(1, 3), math.atan2(3, 1)]
    factors = [n * math.exp(gompertz(a, 1.0)) for n, a in zip((30, 10), angles, strict=True)]
    for report in reports:
        assert column(report, "weight") == pytest.approx([f / sum(factors) for f in factors])
    assert len(strategy.rule.angles) == 2
