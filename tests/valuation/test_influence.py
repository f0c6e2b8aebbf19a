"""Influence, ShapFed's cosines; descent of a quadratic loss, whose best weights are known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedif_flower.combining import combine
from fedif_flower.errors import DivergedError, ValuationError
from fedif_flower.valuation.descent import Descent, descend_weights
from fedif_flower.valuation.influence import (
    Projections,
    influence_from,
    influence_resolution,
    project_updates,
    round_influence,
)
from fedif_flower.valuation.ledger import ScoreLedger, min_max
from fedif_flower.valuation.shapfed import class_contributions, shapfed_contributions


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


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


def test_what_rounding_may_make_of_equal_influences_by_hand():
    """Products err by 0.5 times an update's length, which is 2 and 3; two are compared."""
    found = Projections(vector(1.0, 1.0), vector(4.0, 9.0), error=0.5)
    assert influence_resolution(found) == 1.5
    assert influence_resolution(found, weight_normalization=False) == 1.5 * 3
    nobody = Projections(vector(), vector(), error=0.5)
    assert influence_resolution(nobody, weight_normalization=False) == 1.5


def test_what_rounding_may_do_grows_with_the_terms_of_a_sum():
    """Of 10,000 float32 terms: 8 sqrt(10,000) 2^-24 |g|, times 3; |g| = 3 sqrt(10,000) = 300."""
    found = project_updates(torch.ones(2, 10_000), torch.full((10_000,), 3.0))
    assert influence_resolution(found) == pytest.approx(3 * 8 * 100 * 2**-24 * 300)


@pytest.mark.parametrize("size", [1e-28, 1e30])
def test_updates_whose_squares_leave_float32(size):
    clients = torch.tensor([[-size, 0.0]])
    influence = round_influence(torch.zeros(2), clients, torch.tensor([2.0, 0.0]))
    assert influence.tolist() == pytest.approx([2.0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("slope", [1e4, 1e-8])
def test_products_that_leave_half_precision(dtype, slope):
    """Four coordinates of 10 have the length 20: their influence is -(4 x 10 slope) / 20."""
    clients = torch.stack([torch.full((4,), 10.0), torch.full((4,), -10.0)]).to(dtype)
    influence = round_influence(torch.zeros(4, dtype=dtype), clients, torch.full((4,), slope))
    assert influence.tolist() == pytest.approx([-2 * slope, 2 * slope], rel=1e-6)


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


# -- descent


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


def test_one_update_that_is_left_out_for_its_length_does_not_stop_the_descent():
    alone = descend([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0], steps=1)
    beside = descend([[1.0, 0.0], [0.0, 1.0], [0.0, -1e9]], [1.0, 0.0], steps=1)
    assert beside.weights.tolist() == pytest.approx([*alone.weights.tolist(), 0.0])
    assert beside.losses == pytest.approx(alone.losses)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1e-4, 300.0])  # The squares in float16: 0, and infinite.
def test_what_is_absurdly_long_is_left_out_in_half_precision(dtype, size):
    """It is 200 times as long as the others, although the loss falls along it."""
    updates = size * torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [200.0, 200.0]]).to(dtype)

    def falling(params: Tensor, weights: Tensor) -> tuple[float, Tensor]:
        return -float(params.double().sum()), torch.full((2,), -1.0)

    found = descend_weights(torch.zeros(2, dtype=dtype), updates, torch.ones(4), falling, steps=4)
    assert found.weights.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])


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
