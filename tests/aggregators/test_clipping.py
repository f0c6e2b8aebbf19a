"""How far updates are shortened, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedif_flower.aggregators.clipping import (
    bounded_mean,
    clipping_factors,
    length_factors,
    usual_length,
)


@pytest.mark.parametrize(
    ("norms", "usual"),
    [
        ([6.0, 2.0, 4.0], 4.0),
        ([0.0, 6.0, 0.0, 2.0, 0.0, 4.0], 4.0),  # Who sends no change says nothing of lengths.
        ([2.0, 4.0], 2.0),
        ([0.0, 0.0], math.inf),
    ],
)
def test_the_usual_length_is_the_median_of_those_that_move(norms: list[float], usual: float):
    assert usual_length(torch.tensor(norms)) == usual


def test_no_update_stays_longer_than_the_bound():
    squared_norms = torch.tensor([9.0, 4.0, 1.0, 0.0])
    assert clipping_factors(squared_norms, 2.0).tolist() == pytest.approx([2 / 3, 1, 1, 1])


def test_an_update_is_as_long_as_the_tighter_of_two_bounds_allows():
    norms = torch.tensor([4.0, 4.0, 4.0, 0.0])
    shortening = torch.tensor([1.0, 0.8, 0.25, 1.0])  # Lengths of 4, 3.2, 1 and 0.
    factors = length_factors(norms, torch.tensor(2.0), shortening)
    assert factors.tolist() == pytest.approx([0.5, 0.625, 1.0, 1.0])
    assert length_factors(norms, torch.tensor(2.0)).tolist() == [0.5, 0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    ("selected", "coefficients"),
    [
        ([True, False, True], [0.25, 0.0, 0.5]),
        ([False, True, False], [0.0, 0.25, 0.0]),
        ([False, False, False], [0.0, 0.0, 0.0]),  # The model stays.
    ],
)
def test_a_bounded_mean_divides_by_how_many_are_selected(
    selected: list[bool], coefficients: list[float]
):
    factors = torch.tensor([0.5, 0.25, 1.0])
    assert bounded_mean(torch.tensor(selected), factors).tolist() == coefficients
