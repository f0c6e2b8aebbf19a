from __future__ import annotations

import pytest

from fedif_flower import AFedSV
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
