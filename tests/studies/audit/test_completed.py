"""Values completed by low rank, worked out by hand on a quadratic loss."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedif_studies.audit.completed import ComFedSV, complete


class Quadratic:
    """l(w) = w_1^2 + 2 w_2^2."""

    def loss(self, params):
        return float((torch.tensor([1.0, 2.0]) * params.square()).sum())


def step_of(rows, ids):
    updates = SimpleNamespace(
        client_ids=ids, client_updates=torch.tensor(rows), global_params=torch.ones(2)
    )
    return SimpleNamespace(updates=updates, validation=Quadratic(), num_members=2)


def test_a_matrix_of_rank_one_is_completed():
    whole = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 2.0])).double()
    known = whole.clone()
    known[1, 2] = known[2, 0] = torch.nan
    torch.testing.assert_close(complete(known, 1, 1e-7, 200), whole, rtol=1e-3, atol=0.0)


def test_comfedsv_of_rounds_that_are_all_known_is_the_shapley_value_of_their_means():
    # The loss falls from 3 to 2 by the first, to 1 by the second, to .75 at their mean.
    watcher = ComFedSV()
    watcher.take(step_of([[-1.0, 0.0], [0.0, -1.0]], (0, 1)))
    assert watcher.values.tolist() == pytest.approx([(1 + 0.25) / 2, (2 + 1.25) / 2])


def test_comfedsv_gives_who_was_not_drawn_what_low_rank_says():
    rows = [[-1.0, 0.0], [0.0, -1.0]]
    watcher = ComFedSV(rank=1, ridge=1e-8, sweeps=500)
    watcher.take(step_of(rows, (0, 1)))
    watcher.take(step_of(rows[:1], (0,)))
    # The second round is as the first by what is known of it: so is the whole of it.
    torch.testing.assert_close(
        watcher.values, torch.tensor([1.25, 3.25]).double(), rtol=1e-2, atol=0.0
    )
