"""The span of the last global steps, by hand."""

from __future__ import annotations

import torch

from fedif_flower.valuation.past_steps import REMEMBERED, PastSteps


def test_coordinates_by_hand():
    # The newest step is along the first axis; the one before adds the second.
    past = PastSteps([torch.tensor([2.0, 0.0, 0.0]), torch.tensor([3.0, -1.0, 0.0])])
    updates = torch.tensor([[1.0, 2.0, 5.0], [-4.0, 0.0, 1.0]])
    assert past.shares(updates).tolist() == [[1.0, -2.0], [-4.0, 0.0]]


def test_the_newest_steps_are_remembered_and_those_of_length_0_are_none():
    past = PastSteps()
    assert past.shares(torch.ones(2, 4)).shape == (2, 0)
    for axis in range(4):
        past = past.after(torch.eye(4)[axis]).after(torch.zeros(4))
    assert len(past.steps) == REMEMBERED == 3
    assert past.shares(torch.eye(4)).tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
