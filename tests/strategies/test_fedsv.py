from __future__ import annotations

import pytest

from fedif_flower import FedSV
from fedif_flower.strategies import Setup
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.strategies.lines import (
    STEPS,
    Movers,
    Threshold,
    column,
    play,
    threshold_validation,
)

BASE = {"fraction_evaluate": 0.0, "stages": (), "setup": Setup(device="cpu")}


def test_fedsv_weighs_by_the_rounds_own_values():
    strategy = FedSV(ShapleyValuation(threshold_validation(), estimator="exact"), **BASE)
    _, reports = play(strategy, Threshold(), Movers(STEPS), rounds=2)
    assert column(reports[0], "weight") == pytest.approx([21 / 36, 15 / 36, 0.0])
    for report in reports:
        normalized = column(report, "normalized")
        assert column(report, "weight_score") == normalized
        assert column(report, "weight") == pytest.approx([n / sum(normalized) for n in normalized])
