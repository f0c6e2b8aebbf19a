from __future__ import annotations

import pytest

from fedif_flower import LeaveOneOut
from fedif_flower.strategies import Setup
from tests.strategies.lines import (
    STEPS,
    Movers,
    Threshold,
    column,
    play,
    threshold_validation,
)

BASE = {"fraction_evaluate": 0.0, "stages": (), "setup": Setup(device="cpu")}


def test_leave_one_out_by_hand():
    # u(N) = 1/4: without a 0 is left, without b 0, without c 3/4.
    _, (report,) = play(LeaveOneOut(threshold_validation(), **BASE), Threshold(), Movers(STEPS))
    assert column(report, "score") == pytest.approx([1 / 4, 1 / 4, -1 / 2])
    assert column(report, "weight_score") == pytest.approx([0.3, 0.3, 0.0])
    assert column(report, "weight") == pytest.approx([0.5, 0.5, 0.0])
