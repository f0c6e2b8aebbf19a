from __future__ import annotations

import pytest
import torch

from fedif_flower.aggregators import centred_clipping

UPDATES = torch.tensor([[3.0, 4.0], [0.0, 1.0], [-10.0, 0.0]])


def test_one_iteration_worked_out_by_hand():
    # From 0 with radius 2: [3, 4] * 2/5, [0, 1], [-2, 0].
    step = centred_clipping(UPDATES, torch.zeros(2), radius=2.0, iterations=1)
    assert step.tolist() == pytest.approx([(1.2 + 0 - 2) / 3, (1.6 + 1 + 0) / 3])


def test_distances_are_from_the_centre():
    # From [0, 1]: [3, 3] * 1/sqrt(18), [0, 0], [-10, -1] / sqrt(101).
    step = centred_clipping(UPDATES, torch.tensor([0.0, 1.0]), radius=1.0, iterations=1)
    expected = [(3 / 18**0.5 - 10 / 101**0.5) / 3, 1 + (3 / 18**0.5 - 1 / 101**0.5) / 3]
    assert step.tolist() == pytest.approx(expected)


def test_without_a_radius_it_is_the_median_distance():
    # Lengths 5, 1, 10: the median is 5.
    step = centred_clipping(UPDATES, torch.zeros(2), iterations=1)
    assert step.tolist() == pytest.approx([(3 + 0 - 5) / 3, (4 + 1 + 0) / 3])


def test_a_wide_radius_gives_the_mean_and_iterations_stay_there():
    step = centred_clipping(UPDATES, torch.tensor([5.0, 5.0]), radius=1e6, iterations=4)
    assert step.tolist() == pytest.approx(UPDATES.mean(dim=0).tolist(), rel=1e-5)


def test_nobody_moves_where_all_are_at_the_centre():
    same = torch.ones(3, 2)
    assert centred_clipping(same, torch.ones(2)).tolist() == [1, 1]
