from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedif_flower.aggregators import geometric_median_weights
from fedif_flower.errors import ValuationError


def direct_weiszfeld(points: Tensor, alpha: Tensor, iterations: int, nu: float) -> Tensor:
    """The definition, with the points themselves: the median ``[d]``, in float64."""
    points, alpha = points.double(), alpha.double()
    median = alpha @ points / alpha.sum()
    for _ in range(iterations):
        beta = alpha / (points - median).norm(dim=1).clamp_min(nu)
        median = beta @ points / beta.sum()
    return median


def test_one_iteration_by_hand() -> None:
    # Mean of 0, 3, 9 is 4; distances 4, 1, 5; 1/4 : 1 : 1/5 = 5 : 20 : 4.
    points = torch.tensor([[0.0], [3.0], [9.0]])
    weights = geometric_median_weights(points, torch.ones(3), iterations=1)
    torch.testing.assert_close(weights, torch.tensor([5.0, 20.0, 4.0]).double() / 29)


@pytest.mark.parametrize("origin", [0.0, 30.0])
@pytest.mark.parametrize("iterations", [3, 30])
def test_equals_the_direct_form(origin: float, iterations: int) -> None:
    generator = torch.Generator().manual_seed(3)
    common = origin * torch.randn(9001, generator=generator)
    points = common + 0.01 * torch.randn(7, 9001, generator=generator)
    points[6] += 10.0  # an attacker
    alpha = torch.rand(7, generator=generator)
    weights = geometric_median_weights(points, alpha, iterations=iterations)
    median = direct_weiszfeld(points, alpha, iterations, 1e-6)
    error = (weights @ points.double() - median).norm()
    # Rounding of inner products: 2e-16 |w|^2 / distance^2 = 2e-9 at the far origin.
    assert float(error) <= 1e-8 * float((median - points[0]).norm())
    assert float(weights.sum()) == pytest.approx(1.0)


def test_a_minority_cannot_carry_it_away() -> None:
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1e20, 1e20], [1e20, -1e20]])
    weights = geometric_median_weights(points, torch.ones(5), iterations=200)
    assert float((weights @ points.double()).norm()) < 2.0


def test_weights_that_are_none_are_refused() -> None:
    with pytest.raises(ValuationError, match="positive sum"):
        geometric_median_weights(torch.ones(2, 3), torch.zeros(2))
