from __future__ import annotations

from functools import partial

import pytest
import torch

from fedif_flower.aggregators.linear_algebra import (
    gram_matrix,
    inner_products,
    pairwise_squared_distances,
    shares,
)
from fedif_flower.errors import ValuationError

# Longer than one block of columns, and no multiple of it.
D = 20_001


@pytest.mark.parametrize("origin", [0.0, 100.0])
def test_distances_between_nearly_equal_float32_models(origin: float) -> None:
    generator = torch.Generator().manual_seed(0)
    common = origin * torch.randn(D, generator=generator)
    points = common + 1e-3 * torch.randn(4, D, generator=generator)
    exact = torch.cdist(points.double(), points.double()) ** 2
    torch.testing.assert_close(pairwise_squared_distances(points), exact, rtol=1e-12, atol=0)


def test_distances_that_overflow_float32_stay_finite_and_spare_the_others() -> None:
    points = torch.tensor([[0.0, 0.0], [0.0, 1.0], [3e38, -3e38], [-3e38, 3e38]])
    distances = pairwise_squared_distances(points)
    assert float(distances[0, 1]) == 1.0
    assert float(distances[0, 2]) == pytest.approx(2 * 3e38**2)
    assert float(distances[2, 3]) == pytest.approx(8 * 3e38**2)


def test_gram_and_inner_products_against_float64() -> None:
    generator = torch.Generator().manual_seed(1)
    points, vector = torch.randn(5, D, generator=generator), torch.randn(D, generator=generator)
    wide = points.double()
    torch.testing.assert_close(gram_matrix(points), wide @ wide.T)
    inner, squared_norms, squared_norm = inner_products(points, vector)
    torch.testing.assert_close(inner, wide @ vector.double())
    torch.testing.assert_close(squared_norms, wide.square().sum(dim=1))
    torch.testing.assert_close(squared_norm, vector.double().square().sum())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_named(bad: float) -> None:
    points = torch.zeros(3, 4)
    points[1, 2] = bad
    to_ones = partial(inner_products, vector=torch.ones(4))
    for function in (pairwise_squared_distances, gram_matrix, to_ones):
        with pytest.raises(ValuationError, match=r"rows \[1\] have NaN or Inf"):
            function(points)


def test_shares() -> None:
    assert shares(torch.tensor([1, 3])).tolist() == [0.25, 0.75]
    for weights in ([0.0, 0.0], [2.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]):
        with pytest.raises(ValuationError, match="allowed: finite, >= 0, with a positive sum"):
            shares(torch.tensor(weights))
