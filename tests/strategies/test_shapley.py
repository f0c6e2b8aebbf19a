"""Strategies by Shapley values, on a game of three clients that is worked out by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from fedif_flower import AFedSV, FedSV, LeaveOneOut, SFedAvg
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.strategies.lines import (
    PLAIN,
    SHAPLEY,
    STEPS,
    Movers,
    Threshold,
    column,
    play,
    threshold_validation,
)


def exact() -> ShapleyValuation:
    return ShapleyValuation(threshold_validation(), estimator="exact")


def test_afedsv_by_hand():
    params, (report,) = play(AFedSV(exact(), **PLAIN), Threshold(), Movers(STEPS))
    assert column(report, "score") == pytest.approx(SHAPLEY)
    normalized = [1.0, 15 / 21, 0.0]  # (5 + 10) / (11 + 10)
    assert column(report, "normalized") == pytest.approx(normalized)
    # Omega starts at 0.5; gamma is 0.3.
    omega = [0.7 * 0.5 + 0.3 * psi for psi in normalized]
    assert column(report, "weight_score") == pytest.approx(omega)
    weights = [contribution / sum(omega) for contribution in omega]
    assert column(report, "weight") == pytest.approx(weights)
    expected = sum(weight * step for weight, (step,) in zip(weights, STEPS, strict=True))
    assert params.item() == pytest.approx(expected)
    assert column(report, "accumulative_influence") == [None] * 3


def test_fedsv_weighs_by_the_rounds_own_values():
    _, reports = play(FedSV(exact(), **PLAIN), Threshold(), Movers(STEPS), rounds=2)
    assert column(reports[0], "weight") == pytest.approx([21 / 36, 15 / 36, 0.0])
    for report in reports:
        assert column(report, "weight_score") == column(report, "normalized")


@pytest.mark.parametrize("given", [threshold_validation(), exact()])
def test_leave_one_out_by_hand(given):
    # u(N) = 1/4: without a 0 is left, without b 0, without c 3/4.
    _, (report,) = play(LeaveOneOut(given, **PLAIN), Threshold(), Movers(STEPS))
    assert column(report, "score") == pytest.approx([1 / 4, 1 / 4, -1 / 2])
    assert column(report, "weight_score") == pytest.approx([0.3, 0.3, 0.0])
    assert column(report, "weight") == pytest.approx([0.5, 0.5, 0.0])


def test_s_fedavg_averages_by_examples_and_remembers_relevance():
    movers = Movers(STEPS, examples=[10, 20, 30])
    params, (report,) = play(SFedAvg(exact(), **PLAIN), Threshold(), movers)
    assert column(report, "weight") == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert params.item() == pytest.approx((4.5 + 2 * 2.5 - 3 * 3.7) / 6, abs=1e-6)
    # phi starts at 1/3 and keeps 0.75 of it.
    expected = [0.75 / 3 + 0.25 * value for value in SHAPLEY]
    assert column(report, "weight_score") == pytest.approx(expected)
    assert report.evaluations == 8


def test_s_fedavg_draws_by_relevance():
    nodes = [ClientNode(partition_id, 1000 + partition_id) for partition_id in range(3)]
    strategy = SFedAvg(
        threshold_validation(), alpha=0.0, fraction_train=0.4, min_train_nodes=1, **PLAIN
    )
    strategy.select(nodes, 1)
    # e^phi = 6 : 3 : 1 for the third client, which was never drawn and has 1/3.
    strategy.ledger.update([1000, 1001], 1 / 3 + torch.tensor([6.0, 3.0]).log().double())
    drawn = Counter(strategy.select(nodes, t)[0].partition_id for t in range(2, 1002))
    for partition_id, share in enumerate((0.6, 0.3, 0.1)):
        # Five standard deviations of 1,000 draws.
        spread = 5 * math.sqrt(share * (1 - share) * 1000)
        assert drawn[partition_id] == pytest.approx(1000 * share, abs=spread)
