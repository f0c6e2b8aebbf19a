from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.valuation.path import (
    ADAPTIVE,
    QUADRATURES,
    block_contributions,
    find_refinements,
    is_settled,
    path_attribution,
    slopes,
)
from fedif_flower.valuation.shapley import exact_shapley
from tests.tolerance import rounding

RULES = list(QUADRATURES)
TIGHT = rounding(torch.float64)
SEEDS = st.integers(0, 10_000)


class Polynomial:
    """``sum_j c_j x_j + q_j x_j^2 / 2 + k_j x_j^3 / 3 + (r . x)^2 / 2``, float64."""

    def __init__(self, seed: int, d: int = 5, *, cubic: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        c, q, k, r = torch.randn(4, d, generator=generator, dtype=torch.float64)
        self.c, self.q, self.r = c, q, r
        self.k = k if cubic else torch.zeros_like(k)

    def loss(self, x: Tensor) -> float:
        separable = self.c * x + self.q * x**2 / 2 + self.k * x**3 / 3
        return float(separable.sum() + (self.r @ x) ** 2 / 2)

    def gradient(self, x: Tensor) -> Tensor:
        return self.c + self.q * x + self.k * x**2 + (self.r @ x) * self.r


def game(seed: int, m: int = 4, d: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """A model [d], updates [m, d] and coefficients [m], one of them negative now and then."""
    generator = torch.Generator().manual_seed(seed + 1)
    model = torch.randn(d, generator=generator, dtype=torch.float64)
    updates = torch.randn(m, d, generator=generator, dtype=torch.float64)
    return model, updates, torch.randn(m, generator=generator, dtype=torch.float64) / 2 + 0.5


def decrease(loss: Polynomial, model: Tensor, updates: Tensor, coefficients: Tensor) -> Tensor:
    fell = loss.loss(model) - loss.loss(model + coefficients @ updates)
    return torch.tensor(fell, dtype=torch.float64)


def close(actual: Tensor, expected: Tensor) -> None:
    scale = max(float(expected.abs().max()), 1.0)
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=TIGHT * scale)


@pytest.mark.parametrize(
    ("rule", "expected"),
    # The trapezoid sees (0 + 3) / 2 instead of 1: half as much again.
    [("trapezoid", [-0.375, -1.125]), ("simpson", [-0.25, -0.75]), ("gauss2", [-0.25, -0.75])],
)
def test_by_hand(rule, expected):
    # loss = x^2 + y^2 at (1, 1); one client removes x, the other half of y: 1 and 3/4.
    updates = torch.tensor([[-2.0, 0.0], [0.0, -1.0]])
    found = path_attribution(lambda w: 2 * w, torch.ones(2), updates, torch.full((2,), 0.5), rule)
    assert found.tolist() == pytest.approx([1.0, 0.75])
    # loss = x^3 from 0 to 1 by two clients with coefficients 1/4 and 3/4: -1/4 and -3/4.
    start, ones = torch.zeros(1).double(), torch.ones(2, 1).double()
    shares = torch.tensor([0.25, 0.75])
    found = path_attribution(lambda w: 3 * w**2, start, ones, shares, rule)
    assert found.tolist() == pytest.approx(expected)


@given(seed=SEEDS)
@pytest.mark.parametrize(
    ("rule", "cubic"), [*((rule, False) for rule in RULES), ("simpson", True), ("gauss2", True)]
)
def test_contributions_sum_to_the_decrease_of_a_polynomial(rule, cubic, seed):
    loss, (model, updates, coefficients) = Polynomial(seed, cubic=cubic), game(seed)
    found = path_attribution(loss.gradient, model, updates, coefficients, rule)
    close(found.sum(), decrease(loss, model, updates, coefficients))


@given(seed=SEEDS, who=st.integers(0, 3), zero_weight=st.booleans())
@pytest.mark.parametrize("rule", RULES)
def test_a_zero_update_or_a_zero_weight_gives_exactly_nothing(rule, seed, who, zero_weight):
    loss, (model, updates, coefficients) = Polynomial(seed, cubic=True), game(seed)
    (coefficients if zero_weight else updates)[who] = 0.0
    found = path_attribution(loss.gradient, model, updates, coefficients, rule)
    assert found[who].item() == 0.0
    assert math.copysign(1.0, found[who].item()) == 1.0
    others = [i for i in range(4) if i != who]
    without = path_attribution(loss.gradient, model, updates[others], coefficients[others], rule)
    close(found[others], without)


@given(seed=SEEDS)
@pytest.mark.parametrize("rule", RULES)
def test_it_is_the_shapley_value_of_a_quadratic(rule, seed):
    """The game: a coalition's updates are applied with their coefficients, the others' are not."""
    loss, (model, updates, coefficients) = Polynomial(seed), game(seed)

    def worth(masks: Tensor) -> Tensor:
        return torch.stack([decrease(loss, model, updates[c], coefficients[c]) for c in masks])

    found = path_attribution(loss.gradient, model, updates, coefficients, rule)
    close(found, exact_shapley(worth, 4))


def test_each_refinement_has_the_nodes_of_the_one_before():
    rules = find_refinements(ADAPTIVE)
    assert [len(rule.nodes) for rule in rules] == [3, 5, 9, 17]
    for coarse, fine in itertools.pairwise(rules):
        assert fine.nodes[::2] == coarse.nodes
    assert rules[1].weights == pytest.approx((1 / 12, 4 / 12, 2 / 12, 4 / 12, 1 / 12))
    assert find_refinements("gauss2") == (QUADRATURES["gauss2"],)
    with pytest.raises(ValuationError, match=r"rule = 'midpoint'; allowed: .*gauss2, adaptive"):
        find_refinements("midpoint")


def test_contributions_are_settled_once_they_add_up_or_change_no_more():
    found = torch.tensor([1.0, -0.5])  # 2 % of the sizes' sum: 0.03
    assert is_settled(found, None, 0.52)
    assert not is_settled(found, None, 0.54)
    assert not is_settled(found, found + 0.02, 0.54)
    assert is_settled(found, found + 0.014, 0.54)
    assert is_settled(torch.zeros(2), None, 0.0)


@given(SEEDS)
def test_blocks_contributions_are_those_to_their_own_losses_and_add_up(seed):
    blocks, weights = [Polynomial(seed + 7 * k) for k in range(3)], torch.tensor([0.5, 0.25, 0.25])
    model, updates, coefficients = game(seed)

    def whole(x: Tensor) -> Tensor:
        return sum(w * block.gradient(x) for w, block in zip(weights, blocks, strict=True))

    middle = model + coefficients @ updates / 2
    along = torch.stack([slopes(updates, block.gradient(middle)) for block in blocks])
    total = path_attribution(whole, model, updates, coefficients)
    found = block_contributions(along, coefficients, weights, total)
    close(found.sum(dim=0), total)
    for own, weight, block in zip(found, weights, blocks, strict=True):
        close(own, weight * path_attribution(block.gradient, model, updates, coefficients))
