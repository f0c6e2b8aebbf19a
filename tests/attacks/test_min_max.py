from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.attacks.min_max import MinMax
from fedif_flower.attacks.min_sum import MinSum


def furthest(point, updates) -> float:
    return float((updates - point).norm(dim=1).max())


def summed(point, updates) -> float:
    return float((updates - point).square().sum())


def test_two_updates_worked_out_by_hand():
    # Mean 1, std 1, at distance 2. Min-Max: |1 - g - 2| <= 2, so g = 1: it sends 0, as far as 2.
    updates = torch.tensor([[0.0], [2.0]])
    assert MinMax().collude(torch.zeros(1), updates, torch.Generator()).tolist() == [[0], [0]]
    # Min-Sum: g^2 + g^2 + 2 <= 4, so g = 1.
    assert MinSum().collude(torch.zeros(1), updates, torch.Generator()).tolist() == [[0], [0]]


def test_three_updates_worked_out_by_hand():
    # 0, 0, 3: mean 1, std sqrt(2). Min-Max: 1 - g sqrt(2) - 3 >= -3, so g sqrt(2) = 1.
    # Min-Sum: 3 * 2 g^2 + 6 <= 18, so g sqrt(2) = 2.
    updates = torch.tensor([[0.0], [0.0], [3.0]])
    sent = MinMax().collude(torch.zeros(1), updates, torch.Generator())
    assert sent.flatten().tolist() == pytest.approx([0] * 3, abs=1e-6)
    sent = MinSum().collude(torch.zeros(1), updates, torch.Generator())
    assert sent.flatten().tolist() == pytest.approx([-1] * 3)


@given(k=st.integers(2, 6), d=st.integers(1, 8), seed=st.integers(0, 2**31))
def test_a_step_further_would_break_the_bound(k, d, seed):
    updates = torch.randn(k, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mean, std = updates.mean(dim=0), updates.std(dim=0, correction=0)
    distances = torch.cdist(updates, updates)
    for attack, measure, bound in (
        (MinMax(), furthest, float(distances.max())),
        (MinSum(), summed, float(distances.square().sum(dim=1).max())),
    ):
        sent = attack.collude(torch.zeros(d), updates, torch.Generator())[0]
        gamma = float((mean - sent).norm() / std.norm())
        assert torch.allclose(mean - gamma * std, sent)
        assert measure(sent, updates) == pytest.approx(bound, rel=1e-9)
        assert measure(mean - 1.01 * gamma * std, updates) > bound


@pytest.mark.parametrize("attack", [MinMax(), MinSum()])
def test_where_there_is_no_spread_they_are_honest(attack):
    updates = torch.tensor([[1.0, 2.0]] * 3)
    assert torch.equal(attack.collude(torch.zeros(2), updates, torch.Generator()), updates)
