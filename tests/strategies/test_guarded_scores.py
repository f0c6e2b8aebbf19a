from __future__ import annotations

import pytest
import torch

from fedif_flower import FedIF, Validation
from fedif_flower.strategies import Setup, Weighting
from fedif_flower.valuation.score_guard import ScoreGuard
from tests.strategies.lines import Movers, column, play, point

# The loss is the first parameter: Phi is 1 for the first, 0 for the next two, -1 for the last.
MOVERS = Movers([[-3.0, 0.0], [0.0, 0.0], [0.0, 4.0], [2.0, 0.0]])


def fedif(guard: ScoreGuard | None) -> FedIF:
    validation = Validation(
        point(),
        torch.tensor([[1.0, 0.0]]),
        torch.zeros(1),
        loss_fn=lambda outputs, _: outputs.mean(),
        device="cpu",
    )
    return FedIF(
        validation,
        fraction_evaluate=0.0,
        stages=(),
        weighting=Weighting(guard=guard),
        setup=Setup(device="cpu"),
    )


@pytest.mark.parametrize(
    ("guard", "normalized", "weights"),
    [
        (None, [1, 0.5, 0.5, 0], [0.5, 0.25, 0.25, 0]),
        (ScoreGuard(anchored=True), [1, 0, 0, 0], [1, 0, 0, 0]),
        (ScoreGuard(least_length=0.5), [1, 0, 0.5, 0], [2 / 3, 0, 1 / 3, 0]),
    ],
)
def test_a_free_rider_earns_nothing_where_a_guard_says_so(guard, normalized, weights):
    _, (report,) = play(fedif(guard), point(), MOVERS)
    assert column(report, "normalized") == pytest.approx(normalized)
    assert column(report, "weight") == pytest.approx(weights)
