"""Published valuations: figures worked out by hand on a quadratic loss."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.round import ModelVectors
from fedif_flower.valuation.credit import PastSteps
from fedif_studies.audit.federation import AuditStep
from fedif_studies.audit.valuations import (
    banzhaf_of,
    cgsv,
    comfedsv,
    complete,
    fedfomo,
    first_order,
    second_order,
    shapley_of,
)
from tests.rounds import a_round

CURVATURE = torch.tensor([2.0, 4.0])


class Quadratic:
    """l(w) = w_1^2 + 2 w_2^2."""

    def loss(self, params):
        return float(0.5 * (CURVATURE * params.square()).sum())

    def gradient(self, params):
        return CURVATURE * params

    def means(self, params, buffers, metrics):
        return torch.tensor([self.loss(params)], dtype=torch.float64)


def step_of(rows, coefficients, ids=(0, 1, 2), members=None):
    updates, weights = torch.tensor(rows), torch.tensor(coefficients, dtype=torch.float64)
    m, model = len(rows), ModelVectors(torch.ones(2), torch.zeros(0))
    updates = a_round(updates, model=model, client_ids=tuple(ids[:m]))
    return AuditStep(updates, weights, weights, Quadratic(), Quadratic(), PastSteps(), members or m)


def test_in_run_data_shapley_of_both_orders():
    # g = (2, 4); s = (-1, -.5); H s = (-2, -2); half of it (-1, -1).
    step = step_of([[-2.0, 0.0], [0.0, -1.0]], [0.5, 0.5])
    assert first_order(step).tolist() == pytest.approx([2.0, 2.0])
    # -.5 <(-2, 0), (1, 3)> = 1; -.5 <(0, -1), (1, 3)> = 1.5.
    assert second_order(step).tolist() == pytest.approx([1.0, 1.5], abs=1e-4)
    # A quadratic loss is its own expansion: so they are the exact values.
    torch.testing.assert_close(second_order(step), shapley_of(step.game), rtol=0.0, atol=1e-4)


def test_fedfomo_is_a_decrease_over_a_distance():
    # From (1, 1) the loss is 3; at (-1, 1) as well, at (1, .5) 1.5 over .5.
    step = step_of([[-2.0, 0.0], [0.0, -0.5], [0.0, 0.0]], [0.3, 0.3, 0.3])
    assert fedfomo(step).tolist() == pytest.approx([0.0, 3.0, 0.0])


def test_cgsv_smooths_cosines_with_the_sum_of_unit_updates():
    # Units (1, 0) and (0, 1) have their sum at 45 degrees; the third stands against it.
    step = step_of([[3.0, 0.0], [0.0, 2.0]], [0.5, 0.5])
    assert cgsv([step], smoothing=0.5).tolist() == pytest.approx([0.5, 0.5])
    step = step_of([[1.0, 0.0], [1.0, 0.0], [-2.0, 0.0]], [0.3] * 3)
    assert cgsv([step], smoothing=0.0).tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_banzhaf_counts_every_coalition_alike():
    # Three members, the unanimity game of the first two and one more from the third alone.
    coalitions = range(8)
    game = torch.tensor([float(c & 3 == 3) + 2.0 * bool(c & 4) for c in coalitions])
    assert banzhaf_of(game).tolist() == pytest.approx([0.5, 0.5, 2.0])


def test_a_matrix_of_rank_one_is_completed():
    whole = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 2.0])).double()
    known = whole.clone()
    known[1, 2] = known[2, 0] = torch.nan
    torch.testing.assert_close(complete(known, 1, 1e-7, 200), whole, rtol=1e-3, atol=0.0)


def test_comfedsv_of_rounds_that_are_all_known_is_the_shapley_value_of_their_means():
    # The loss falls from 3 to 2 by the first, to 1 by the second, to .75 at their mean.
    step = step_of([[-1.0, 0.0], [0.0, -1.0]], [0.5, 0.5])
    assert comfedsv([step]).tolist() == pytest.approx([(1 + 0.25) / 2, (2 + 1.25) / 2])


def test_comfedsv_gives_who_was_not_drawn_what_low_rank_says():
    rows = [[-1.0, 0.0], [0.0, -1.0]]
    steps = [step_of(rows, [0.5, 0.5]), step_of(rows[:1], [1.0], ids=(0,), members=2)]
    # The second round is as the first by what is known of it: so is the whole of it.
    found = comfedsv(steps, rank=1, ridge=1e-8, sweeps=500)
    torch.testing.assert_close(found, torch.tensor([1.25, 3.25]).double(), rtol=1e-2, atol=0.0)
