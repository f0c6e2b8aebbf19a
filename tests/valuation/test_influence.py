"""What an update is worth by its direction: its influence, and ShapFed's cosines."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedif_flower.valuation.influence import (
    influence_from,
    influence_resolution,
    project_updates,
    round_influence,
)
from fedif_flower.valuation.ledger import ScoreLedger, min_max
from fedif_flower.valuation.shapfed import class_contributions, shapfed_contributions


def psi(updates: Tensor, gradient: Tensor) -> list[float]:
    """Return what a round's min-max makes of its influences."""
    found = project_updates(updates, gradient)
    return min_max(influence_from(found), influence_resolution(found)).tolist()


@given(
    dtype=st.sampled_from([torch.float32, torch.float64]),
    d=st.sampled_from([3, 100, 4000, (1 << 16) + 50]),
    seed=st.integers(0, 1000),
    lengths=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=5),
    orthogonal=st.booleans(),
)
def test_ties_and_near_ties_have_the_same_scores(dtype, d, seed, lengths, orthogonal):
    generator = torch.Generator().manual_seed(seed)
    gradient, update = torch.randn(2, d, generator=generator, dtype=torch.float64)
    if orthogonal:  # The influence is rounding and nothing else.
        update -= (update @ gradient) / (gradient @ gradient) * gradient
    tied = update.expand(len(lengths), d).to(dtype)
    near = (torch.tensor(lengths, dtype=torch.float64)[:, None] * update).to(dtype)
    # Another order of the coordinates is another order of the sums.
    shuffled = torch.randperm(d, generator=generator)
    for rows in (tied, near, near[:, shuffled]):
        own = gradient[shuffled] if rows is not tied and rows is not near else gradient
        assert psi(rows, own.to(dtype)) == [1.0] * len(lengths)


@pytest.mark.parametrize("size", [1e-28, 1e30])
def test_updates_whose_squares_leave_float32(size):
    clients = torch.tensor([[-size, 0.0]])
    influence = round_influence(torch.zeros(2), clients, torch.tensor([2.0, 0.0]))
    assert influence.tolist() == pytest.approx([2.0])


MEMBERS, NOISY, SIZE = 10, 5, 20


@given(seed=st.integers(0, 2**31), noise=st.floats(2.0, 10.0), step=st.floats(1e-4, 1.0))
def test_fedif_s_noise_term_is_smaller_than_fedavg_s(seed, noise, step):
    """Of the bound in Theorem 1, sum_i p_i |delta_i|^2, where five of ten clients send noise.

    Client i's objective is F_i(w) = 1/2 (w - c_i)' A (w - c_i).
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    root = normal(SIZE, SIZE) / math.sqrt(SIZE)
    hessian, centres, start = root @ root.T, 0.3 * normal(MEMBERS, SIZE), 2 * normal(SIZE)
    noises = noise * normal(MEMBERS, SIZE)  # [m, d], zero for honest clients
    noises[NOISY:] = 0
    gradients = (start - centres) @ hessian  # [m, d]
    models = start - step * (gradients + noises)  # [m, d]
    ledger = ScoreLedger(gamma=0.3)  # The first round: influence, min-max, smoothing, weights.
    ledger.update(range(MEMBERS), min_max(round_influence(start, models, gradients.mean(dim=0))))
    terms = noises.square().sum(dim=1)  # [m]
    assert float(ledger.weights(range(MEMBERS)) @ terms) < 0.9 * float(terms.mean())


# -- ShapFed's


# Two clients, two classes, two features; p = (1/2, 1/2) makes the aggregate ((1, 1), (0, 1)).
UPDATES = torch.tensor([[[2.0, 0.0], [0.0, 3.0]], [[0.0, 2.0], [0.0, -1.0]]])


def test_shapfed_by_hand() -> None:
    half = 0.5**0.5
    expected = torch.tensor([[half, 1.0], [half, -1.0]], dtype=torch.float64)
    weights = torch.tensor([0.5, 0.5])
    torch.testing.assert_close(class_contributions(UPDATES, weights), expected)
    torch.testing.assert_close(shapfed_contributions(UPDATES, weights), expected.mean(dim=1))


def test_rows_without_an_update_count_as_zero() -> None:
    updates = UPDATES.clone()
    updates[0, 0] = 0.0  # client 0 did not touch class 0
    updates[:, 1] = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])  # class 1 cancels out
    contributions = class_contributions(updates, torch.tensor([0.5, 0.5]))
    assert contributions.tolist() == [[0.0, 0.0], [1.0, 0.0]]


@given(st.data())
def test_shapfed_s_order_and_scale_do_not_matter(data: st.DataObject) -> None:
    m = data.draw(st.integers(1, 4))
    numbers = st.lists(st.integers(-9, 9), min_size=6 * m, max_size=6 * m)
    updates = torch.tensor(data.draw(numbers)).view(m, 2, 3).float()
    weights = torch.tensor(data.draw(st.lists(st.integers(0, 9), min_size=m, max_size=m)))
    order = data.draw(st.permutations(range(m)))
    contributions = class_contributions(updates, weights)
    assert (contributions.abs() <= 1.0).all()
    moved = class_contributions(updates[order], weights[order])
    torch.testing.assert_close(moved, contributions[order])
    # Neither the scale of all updates nor that of the weights matters.
    torch.testing.assert_close(class_contributions(4.0 * updates, 8 * weights), contributions)
