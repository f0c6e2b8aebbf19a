from __future__ import annotations

import pytest
import torch

from fedif_flower.aggregators import dnc_weights

# The mean is [1, 0]; the spread is along the first axis, by -1, 0, -2, 3.
UPDATES = torch.tensor([[0.0, 0.1], [1.0, -0.1], [-1.0, 0.0], [4.0, 0.0]])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_the_updates_furthest_along_the_main_direction_are_left_out():
    assert dnc_weights(UPDATES, 1, generator()).tolist() == pytest.approx([1 / 3] * 3 + [0])
    assert dnc_weights(UPDATES, 2, generator()).tolist() == [0.5, 0.5, 0, 0]
    assert dnc_weights(UPDATES, 0, generator()).tolist() == [0.25] * 4


def test_more_can_be_filtered_than_are_expected():
    assert dnc_weights(UPDATES, 1, generator(), filtered=1.5).tolist() == [0.5, 0.5, 0, 0]


def test_one_is_always_kept():
    assert dnc_weights(UPDATES, 9, generator()).tolist() == [0, 1, 0, 0]


def test_an_update_must_pass_every_random_set_of_coordinates():
    updates = torch.zeros(5, 4)
    for client in range(4):
        updates[client, client] = 10.0 + client  # each stands out on a coordinate of its own
    weights = dnc_weights(updates, 1, generator(), iterations=40, coordinates=1)
    assert weights.tolist() == [0, 0, 0, 0, 1]
    again = dnc_weights(updates, 1, generator(), iterations=40, coordinates=1)
    assert torch.equal(weights, again)
