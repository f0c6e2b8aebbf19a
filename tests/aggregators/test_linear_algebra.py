"""What rules are computed with: products, distances, shares, bounds by the spread."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.aggregators.linear_algebra import (
    gram_matrix,
    inner_products,
    normalize_weights,
    pairwise_squared_distances,
)
from fedif_flower.aggregators.spread import bound_by_spread
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
        with pytest.raises(ValuationError, match=r"the updates at rows \[1\] have NaN or Inf"):
            function(points)


def test_normalize_weights() -> None:
    assert normalize_weights(torch.tensor([1, 3])).tolist() == [0.25, 0.75]
    for weights in ([0.0, 0.0], [2.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]):
        with pytest.raises(ValuationError, match="allowed: finite, >= 0, with a positive sum"):
            normalize_weights(torch.tensor(weights))


# -- values bounded by the clients' own spread


def bounded(values: list[float], multiple: float = 3.0) -> list[float]:
    changes = torch.tensor(values)[:, None]
    bound_by_spread(changes, multiple)
    return changes[:, 0].tolist()


def test_an_outlier_is_replaced_by_the_median():
    # Votes 0, 1, 2, 100: median 1.5, deviations 0.5, 0.5, 1.5, 98.5 with median 1. Then -100, 0,
    # 1, 2: median 0.5, deviations 0.5, 0.5, 1.5, 100.5 with median 1.
    assert bounded([1.0, 2.0, 100.0]) == [1.0, 2.0, 1.5]
    assert bounded([1.0, 2.0, -100.0], multiple=2.0) == [1.0, 2.0, 0.5]


def test_batch_norm_statistics_are_bounded_by_five_deviations():
    """Of votes 0, 1, 2 and 6 the median is 1.5, of the deviations 1: 4.5 is within, 5.5 not."""
    for furthest, expected in ((6.0, 6.0), (7.0, 1.5)):
        changes = torch.tensor([[1.0], [2.0], [furthest]])
        bound_by_spread(changes)
        assert changes[:, 0].tolist() == [1.0, 2.0, expected]


def test_what_most_leave_alone_stays_exactly():
    assert bounded([0.0, 0.0, 5.0, 0.0]) == [0.0] * 4
    # One of two: the received value has a vote.
    assert bounded([0.0, 5.0]) == [0.0, 0.0]


def test_every_column_and_block_has_bounds_of_its_own():
    columns = (1 << 16) + 3
    changes = torch.ones(5, columns)
    changes[:, 1] = 0.0
    changes[2] = 1e12
    bound_by_spread(changes, 3.0)
    expected = torch.ones(5, columns)
    expected[:, 1] = 0.0
    assert torch.equal(changes, expected)


values = st.floats(-100, 100, width=32)


@given(st.lists(values, min_size=1, max_size=8), st.data())
def test_a_minority_moves_nothing_beyond_what_the_others_allow(honest, data):
    hostile = data.draw(st.lists(st.floats(-1e15, 1e15), max_size=len(honest), unique=True))
    lowest, highest = min([0.0, *honest]), max([0.0, *honest])
    reach = 3.0 * (highest - lowest) * (1 + 1e-5)
    for value in bounded([*honest, *hostile]):
        assert lowest - reach <= value <= highest + reach
