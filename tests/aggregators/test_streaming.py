from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedif_flower.aggregators.streaming import StreamedSums
from fedif_flower.errors import ValuationError
from fedif_flower.valuation.ledger import min_max
from tests.tolerance import rounding


def summed(updates: torch.Tensor, known: torch.Tensor) -> StreamedSums:
    sums, row = StreamedSums(), torch.empty_like(updates[0])
    for update, coefficients in zip(updates, known.tolist(), strict=True):
        sums.add(row.copy_(update), coefficients)
    return sums


def test_by_hand():
    updates = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    sums = summed(updates, torch.tensor([[1.0, 3.0], [1.0, 5.0], [1.0, 1.0]]))
    # Weights 2 + c: 5, 7, 3.
    combined = sums.combined(torch.tensor([5.0, 7.0, 3.0]))
    torch.testing.assert_close(combined, torch.tensor([11.0, 13.0]))
    assert len(sums) == 3


@settings(max_examples=50, deadline=None)
@given(
    m=st.integers(1, 12),
    gamma=st.floats(0.05, 1.0),
    seed=st.integers(0, 999),
    spread=st.sampled_from([1.0, 1e-3, 0.0]),
    fresh=st.booleans(),
)
def test_fedifs_weights_are_of_this_form(m, gamma, seed, spread, fresh):
    generator = torch.Generator().manual_seed(seed)
    updates = torch.randn(m, 30, generator=generator)
    phi = 5.0 + spread * torch.randn(m, generator=generator, dtype=torch.float64)
    omega = torch.zeros(m).double() if fresh else torch.rand(m, generator=generator).double()
    new = (1 - gamma) * omega + gamma * min_max(phi)
    weights = new / new.sum()
    known = torch.stack([torch.ones(m).double(), phi - phi[0], omega], dim=1)
    expected = weights @ updates.double()
    combined = summed(updates, known).combined(weights)
    allowed = rounding(torch.float32) * float(updates.double().norm())
    assert float((combined.double() - expected).norm()) <= allowed


def test_weights_of_another_form_are_refused():
    sums = summed(torch.eye(3), torch.tensor([[1.0], [1.0], [1.0]]))
    with pytest.raises(ValuationError, match='aggregation="stacked" is needed'):
        sums.combined(torch.tensor([1.0, 2.0, 3.0]))


def test_nothing_cannot_be_combined():
    with pytest.raises(ValuationError, match="no updates"):
        StreamedSums().combined(torch.empty(0))
