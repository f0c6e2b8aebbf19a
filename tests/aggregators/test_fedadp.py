from __future__ import annotations

import math

import pytest
import torch

from fedif_flower.aggregators import FedAdp
from fedif_flower.aggregators.fedadp import update_angles


def gompertz(theta: float, alpha: float = 5.0) -> float:
    return alpha * (1.0 - math.exp(-math.exp(-alpha * (theta - 1.0))))


def test_angles_by_hand() -> None:
    # Global update (2, 2) / 2 for equal numbers of examples: 45 degrees from either.
    updates = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    expected = torch.full((2,), math.pi / 4, dtype=torch.float64)
    torch.testing.assert_close(update_angles(updates, torch.ones(2)), expected)


def test_weights_by_hand() -> None:
    updates = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    weights = FedAdp().weights([7, 9], updates, torch.tensor([3, 1]))
    first, second = 3 * math.exp(gompertz(0.0)), math.exp(gompertz(math.pi))
    expected = torch.tensor([first, second], dtype=torch.float64) / (first + second)
    torch.testing.assert_close(weights, expected)


def test_angles_are_averaged_over_each_clients_own_rounds() -> None:
    rule = FedAdp()
    against = torch.tensor([[3.0, 0.0], [-1.0, 0.0]])
    rule.weights([1, 2], against, torch.ones(2))
    assert rule.angles_of([1, 2]).tolist() == pytest.approx([0.0, math.pi])
    rule.weights([2, 3], torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.ones(2))
    assert rule.angles_of([1, 2, 3]).tolist() == pytest.approx(
        [0.0, (math.pi + math.pi / 4) / 2, math.pi / 4]
    )
    weights = rule.weights([2, 1], torch.ones(2, 2), torch.ones(2))
    second, first = rule.angles_of([2, 1]).tolist()
    assert second == pytest.approx((math.pi + math.pi / 4) / 3, abs=1e-6)
    ratio = math.exp(gompertz(second) - gompertz(first))
    assert float(weights[0] / weights[1]) == pytest.approx(ratio)
