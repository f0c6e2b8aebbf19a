from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedif_flower import AFedSV, FedIF, LeaveOneOut
from fedif_flower.strategies import Setup
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.strategies.lines import (
    SHAPLEY,
    STEPS,
    Movers,
    Threshold,
    column,
    play,
    threshold_validation,
)

BASE = {"fraction_evaluate": 0.0, "stages": (), "setup": Setup(device="cpu")}


def test_afedsv_by_hand():
    strategy = AFedSV(ShapleyValuation(threshold_validation(), estimator="exact"), **BASE)
    params, (report,) = play(strategy, Threshold(), Movers(STEPS))
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


def test_afedsv_and_fedif_differ_in_valuation_and_start_alone():
    afedsv, fedif = (kind(threshold_validation(), **BASE) for kind in (AFedSV, FedIF))
    assert isinstance(afedsv.valuation, ShapleyValuation)
    assert replace(afedsv.weighting, initial=0.0) == fedif.weighting
    assert afedsv.seed == fedif.seed
    assert (afedsv.ledger.gamma, fedif.ledger.gamma) == (0.3, 0.3)
    assert (afedsv.ledger.initial, fedif.ledger.initial) == (0.5, 0.0)


def test_evaluation_counts_reach_the_report():
    movers = Movers([[step] for step in torch.linspace(-2.0, 6.0, 10).tolist()])

    def evaluations(strategy) -> int:
        _, (report,) = play(strategy, Threshold(), movers)
        return report.evaluations

    assert (
        evaluations(AFedSV(ShapleyValuation(threshold_validation(), estimator="exact"), **BASE))
        == 1024
    )
    assert 300 < evaluations(AFedSV(threshold_validation(), **BASE)) < 600
    assert evaluations(LeaveOneOut(threshold_validation(), **BASE)) == 11
    assert evaluations(FedIF(threshold_validation(), **BASE)) == 1
