"""Descent of a quadratic loss, whose best weights are known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedif_flower.errors import DivergedError, ValuationError
from fedif_flower.round import combine
from fedif_flower.valuation.descent import Descent, descend_weights

ZERO = torch.zeros(2, dtype=torch.float64)
seeds = st.integers(0, 2**31)


def bowl(centre: Tensor):
    """Return half the squared distance from ``centre``, and its gradient, as a loss on D'."""

    def loss_gradient(params: Tensor, weights: Tensor) -> tuple[float, Tensor]:
        away = params - centre
        return float(away @ away) / 2, away

    return loss_gradient


def descend(updates: list[list[float]], centre: list[float], **settings) -> Descent:
    rows, middle = (torch.tensor(values, dtype=torch.float64) for values in (updates, centre))
    return descend_weights(ZERO, rows, torch.ones(len(rows)), bowl(middle), **settings)


def drawn(seed: int, m: int, d: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Return updates ``[m, d]``, initial weights ``[m]`` and a centre ``[d]``."""
    generator = torch.Generator().manual_seed(seed)
    updates = torch.randn(m, d, generator=generator, dtype=torch.float64)
    weights = torch.rand(m, generator=generator, dtype=torch.float64) + 0.1
    return updates, weights, torch.randn(d, generator=generator, dtype=torch.float64)


def test_a_step_by_hand():
    # At (1/2, 1/2) the model is (1/2, 1/2), and the way to (1, 0) is along (1/2, -1/2).
    found = descend([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0], steps=1)
    # The slopes are -1/2 and 1/2, over the largest -1 and 1.
    expected = math.exp(1) / (math.exp(1) + math.exp(-1))
    assert found.weights.tolist() == pytest.approx([expected, 1 - expected])
    assert found.losses == pytest.approx((0.25, (1 - expected) ** 2))
    assert found.evaluations == 2


@given(seed=seeds, m=st.integers(1, 8), steps=st.integers(0, 12))
def test_the_loss_never_rises(seed, m, steps):
    updates, initial, centre = drawn(seed, m)
    updates[0] *= 100
    found = descend_weights(torch.zeros(5).double(), updates, initial, bowl(centre), steps=steps)
    assert list(found.losses) == sorted(found.losses, reverse=True)
    assert len(found.losses) <= steps + 1
    assert float(found.weights.sum()) == pytest.approx(1)
    assert bool((found.weights >= 0).all())
    model = combine(torch.zeros(5).double(), updates, found.weights)
    assert bowl(centre)(model, found.weights)[0] == pytest.approx(found.losses[-1])


@given(seed=seeds, share=st.floats(0.05, 0.95))
def test_splitting_a_client_changes_nothing(seed, share):
    updates, initial, centre = drawn(seed, 5)
    # How long is usual depends on how many there are: here nothing is ten times as long.
    updates /= torch.linalg.vector_norm(updates, dim=1, keepdim=True)
    start = torch.zeros(5).double()
    one = descend_weights(start, updates, initial, bowl(centre)).weights
    halves = torch.cat([initial, initial[:1] * (1 - share)])
    halves[0] *= share
    split = descend_weights(start, torch.cat([updates, updates[:1]]), halves, bowl(centre)).weights
    assert split[:1] + split[-1:] == pytest.approx(one[:1], abs=1e-6)
    assert split[1:-1].tolist() == pytest.approx(one[1:].tolist(), abs=1e-6)
    assert split[0].item() == pytest.approx(share * one[0].item(), abs=1e-6)


def test_relative_weights_give_the_servers_own_directions_nothing():
    # The optimum lies far along (1, 1), the last step: the longer update would gain by its length,
    # and the third by repeating it. A fourth sends nothing.
    updates = [[1.0, 0.0], [0.0, 1.0], [3.0, 3.0], [0.0, 0.0]]
    last = torch.tensor([1.0, 1.0], dtype=torch.float64)
    plain = descend(updates, [9.0, 9.0], steps=4)
    assert plain.weights[2] > 0.5 > 0.2 > plain.weights[3]
    relative = descend(updates, [9.0, 9.0], steps=4, last_step=last, relative=True)
    assert relative.weights.tolist() == pytest.approx([0.25] * 4)


def test_what_is_long_is_left_out_where_the_loss_is_less_without_it():
    def of(long: list[float]) -> Tensor:
        updates = [[0.1, 0.0], [0.1, 0.0], [0.0, 0.1], long]
        return descend(updates, [1.0, 0.0], steps=4).weights

    assert of([-3.0, 0.0])[3] == 0.0
    assert of([3.0, 0.0])[3] > 0.25  # It leads where the others would be slow to go.


def test_a_diverging_client_is_left_out():
    def overflowing(params: Tensor, weights: Tensor) -> tuple[float, Tensor]:
        loss, gradient = bowl(torch.tensor([1.0, 0.0]).double())(params, weights)
        return (math.nan, gradient * math.nan) if params.abs().max() > 1e6 else (loss, gradient)

    updates = torch.tensor([[1.0, 0.0], [9e14, 0.0], [1e9, 1e9]]).double()
    found = descend_weights(ZERO, updates, torch.ones(3), overflowing)
    assert found.weights.tolist() == [1.0, 0.0, 0.0]
    assert found.losses == (0.0,)
    with pytest.raises(ValuationError, match="whichever updates") as error:
        descend_weights(ZERO, updates[1:], torch.ones(2), overflowing)
    assert not isinstance(error.value, DivergedError)
    with pytest.raises(DivergedError):
        descend_weights(ZERO + 1e7, updates[:1], torch.ones(1), overflowing)
