"""Sums whose rounding would show."""

from __future__ import annotations

import math

import pytest
import torch

from fedif_flower.arithmetic import all_finite, share_of


def test_a_share_is_meant_and_not_its_rounding_error():
    assert share_of(100, 0.29, at_least=1) == 29  # 0.29 * 100 is 28.999...
    assert share_of(20, 0.01, at_least=2) == 2


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([3e38, 3e38], True),  # their sum is not
        ([1.0, math.nan], False),
        ([math.inf, -math.inf], False),
    ],
)
def test_values_are_finite_even_where_their_sum_is_not(values, finite):
    assert all_finite(torch.tensor(values)) is finite
