from __future__ import annotations

import pytest
import torch

from fedif_flower.round import Aggregation, ModelVectors
from fedif_flower.stages import NearestNeighbours
from fedif_flower.stages.nearest_neighbours import neighbour_mixing
from tests.rounds import a_round

UPDATES = torch.tensor([[0.0], [1.0], [3.0], [100.0]])
BUFFERS = {"model": ModelVectors(torch.zeros(1), torch.zeros(1)), "buffer_updates": 10 * UPDATES}


@pytest.mark.parametrize(
    ("left_out", "means"),
    [
        (0, [26, 26, 26, 26]),
        (1, [4 / 3, 4 / 3, 4 / 3, 104 / 3]),
        (2, [0.5, 0.5, 2, 51.5]),
        (3, [0, 1, 3, 100]),
    ],
)
def test_each_update_becomes_the_mean_of_those_nearest_to_it(left_out, means):
    mixing = neighbour_mixing(UPDATES, left_out)
    assert (mixing @ UPDATES.double()).flatten().tolist() == pytest.approx(means)
    assert mixing.sum(dim=1).tolist() == pytest.approx([1] * 4)


def test_a_round_is_mixed_and_weights_go_back_to_the_clients():
    mixed = NearestNeighbours(0.5).before(a_round(UPDATES, **BUFFERS))
    assert mixed.client_updates.flatten().tolist() == [0.5, 0.5, 2, 51.5]
    assert mixed.buffer_updates.flatten().tolist() == [5, 5, 20, 515]
    assert mixed.squared_norms.tolist() == [0.25, 0.25, 4, 51.5**2]
    own = mixed.unmixed(Aggregation(weights=torch.tensor([0.5, 0.25, 0.25, 0.0]))).weights
    # Rows: (0, 1), (0, 1), (1, 2), (2, 3).
    assert own.tolist() == [0.375, 0.5, 0.125, 0]
    # Two mixings are one matrix.
    twice = NearestNeighbours(0.5).before(mixed)
    assert torch.allclose(twice.mixing @ UPDATES.double(), twice.client_updates.double())


def test_updates_that_are_to_be_shortened_are_shortened_first():
    factors = torch.tensor([1.0, 1.0, 1.0, 0.03], dtype=torch.float64)
    mixed = NearestNeighbours(0.5).before(a_round(UPDATES, factors=factors))
    # The last one is 3 by then, as the third.
    assert mixed.client_updates.flatten().tolist() == pytest.approx([0.5, 0.5, 3, 3])
    assert mixed.factors is None
