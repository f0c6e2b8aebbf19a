from __future__ import annotations

import math

import pytest
import torch

from fedif_flower.aggregators import FoolsGold, fools_gold_weights
from fedif_flower.strategies import RobustRule, Setup
from tests.strategies.lines import Movers, column, play, point

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


def test_two_that_are_alike_get_nothing():
    sums = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    assert fools_gold_weights(sums).tolist() == [0, 0, 1]


def test_a_cosine_by_hand():
    # Cosines 0.6 (first, second), 0 and 0.8: most 0.6, 0.8, 0.8. The first is pardoned to
    # 0.6 * 0.6 / 0.8 = 0.45: alpha 0.55, 0.2, 0.2, divided by 0.55.
    sums = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    # The logarithm of 0.36 / 0.64 is less than -0.5.
    assert fools_gold_weights(sums).tolist() == [1, 0, 0]
    sums = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]])
    # Now 0.6 for both of the first, none for the third: alpha 0.4, 0.4, 1.
    small = math.log(0.4 / 0.6) + 0.5
    total = 1 + 2 * small
    expected = [small / total, small / total, 1 / total]
    assert fools_gold_weights(sums).tolist() == pytest.approx(expected, rel=1e-5)


def test_where_all_are_alike_nobody_counts():
    assert fools_gold_weights(torch.ones(3, 2)).tolist() == [0, 0, 0]
    assert fools_gold_weights(torch.ones(1, 2)).tolist() == [1]


def test_the_sums_are_of_all_rounds_and_go_with_a_checkpoint():
    strategy = RobustRule(FoolsGold(), **BASE)
    movers = Movers([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    params, reports = play(strategy, point(), movers, rounds=2)
    assert column(reports[1], "weight") == pytest.approx([0, 0, 1])
    assert params.tolist() == pytest.approx([0, 2])
    other = RobustRule(FoolsGold(), **BASE)
    other.load_state_dict(strategy.state_dict())
    assert sorted(s.tolist() for s in other.rule.sums.values()) == [[0, 2], [2, 0], [2, 0]]
