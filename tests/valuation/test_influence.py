from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.round import ModelVectors
from fedif_flower.valuation import InfluenceValuation, Validation
from fedif_flower.valuation.influence import (
    influence_from,
    influence_resolution,
    project_updates,
    round_influence,
)
from fedif_flower.valuation.ledger import min_max
from tests.rounds import a_round

GLOBAL = torch.tensor([1.0, 1.0])
# Moves of length 5 towards (3, 4), against it, and none at all.
CLIENTS = torch.tensor([[-2.0, -3.0], [4.0, 5.0], [1.0, 1.0]])
GRADIENT = torch.tensor([3.0, 4.0])


def test_projections_by_hand():
    inner, squared_norm, _ = project_updates(CLIENTS - GLOBAL, GRADIENT)
    assert inner.tolist() == [25.0, -25.0, 0.0]
    assert squared_norm.tolist() == [25.0, 25.0, 0.0]
    known = torch.tensor([25.0, 25.0, 0.0], dtype=torch.float64)
    again = project_updates(CLIENTS - GLOBAL, GRADIENT, known)
    assert torch.equal(again.inner, inner)
    assert torch.equal(again.squared_norm, known)


def psi(updates: torch.Tensor, gradient: torch.Tensor) -> list[float]:
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


@pytest.mark.parametrize("prepared", [True, False])
def test_valuation_on_a_quadratic(prepared):
    # loss = mean (w x - y)^2 with x = 1, y = 3: gradient at w = 1 is -4.
    ones, mean = torch.ones(2, 1), torch.nn.functional.mse_loss
    model = torch.nn.Linear(1, 1, bias=False)
    validation = Validation(model, ones, 3 * ones, loss_fn=mean, device="cpu")
    valuation = InfluenceValuation(validation)
    sent = ModelVectors(torch.tensor([1.0]), torch.empty(0))
    updates = a_round(torch.tensor([[1.0], [-0.5]]), model=sent)
    if prepared:
        valuation.prepare(updates.global_params, {})
    scores = valuation.score(updates)
    assert scores.values.tolist() == pytest.approx([4.0, -4.0])
    assert scores.influences.tolist() == pytest.approx([4.0, -2.0])
    assert scores.evaluations == 1
