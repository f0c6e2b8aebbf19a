from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.aggregators import sign_guard_coefficients
from fedif_flower.aggregators.sign_guard import sign_shares


def test_signs_are_counted():
    shares = sign_shares(torch.tensor([[1.0, -2.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0]]))
    assert shares.tolist() == [[0.5, 0.25, 0.25], [0, 1, 0]]


def test_unusual_lengths_and_signs_are_left_out_and_long_ones_shortened():
    like, unlike = [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]
    lengths = torch.tensor([1.0, 1.0, 2.0, 9.0, 1.0, 0.05], dtype=torch.float64)
    shares = torch.tensor([like, like, like, like, unlike, like], dtype=torch.float64)
    # Their median is 1. The fourth is too long, the fifth of other signs, the sixth too short.
    found = sign_guard_coefficients(lengths, shares)
    assert found.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 6, 0, 0, 0])


def test_shares_count_beside_the_largest_and_who_is_near_no_cluster_is_left_out():
    # Zeros are few: the last two differ by them alone, by as much as any share can.
    shares = torch.tensor([[0.5, 0.49, 0.01]] * 4 + [[0.5, 0.5, 0.0]] * 2, dtype=torch.float64)
    ones = torch.ones(6, dtype=torch.float64)
    assert sign_guard_coefficients(ones, shares).tolist() == [0.25] * 4 + [0.0] * 2
    alone = torch.tensor([[0.5, 0.4, 0.1]] * 5 + [[0.2, 0.4, 0.4]], dtype=torch.float64)
    assert sign_guard_coefficients(ones, alone).tolist() == [0.2] * 5 + [0.0]


def test_where_nobody_is_usual_the_model_stays():
    lengths = torch.tensor([1.0, 9.0], dtype=torch.float64)
    found = sign_guard_coefficients(lengths, torch.eye(3).double()[:2], shortest=0.9, longest=1.1)
    assert found.tolist() == [0, 0]


@given(m=st.integers(1, 7), seed=st.integers(0, 2**31))
def test_the_step_is_no_longer_than_the_median(m, seed):
    updates = torch.randn(m, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    lengths = updates.norm(dim=1)
    found = sign_guard_coefficients(lengths, sign_shares(updates))
    assert bool((found >= 0).all())
    assert float((found @ updates).norm()) <= float(lengths.quantile(0.5)) * (1 + 1e-9)
