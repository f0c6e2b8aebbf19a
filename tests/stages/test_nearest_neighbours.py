from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedif_flower.errors import ConfigError
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.stages import NearestNeighbours

UPDATES = torch.tensor([[0.0], [1.0], [3.0], [100.0]])


def a_round() -> RoundUpdates:
    return RoundUpdates(
        server_round=1,
        client_ids=(0, 1, 2, 3),
        num_examples=torch.ones(4, dtype=torch.float64),
        model=ModelVectors(torch.zeros(1), torch.zeros(1)),
        client_updates=UPDATES,
        squared_norms=UPDATES.double().square().sum(dim=1),
        buffer_updates=10 * UPDATES,
    )


def test_a_round_is_mixed_and_weights_go_back_to_the_clients():
    updates = a_round()
    mixed = NearestNeighbours(0.5).before(updates)
    assert mixed.client_updates.flatten().tolist() == [0.5, 0.5, 2, 51.5]
    assert mixed.buffer_updates.flatten().tolist() == [5, 5, 20, 515]
    assert mixed.squared_norms.tolist() == [0.25, 0.25, 4, 51.5**2]
    own = mixed.unmixed(Aggregation(weights=torch.tensor([0.5, 0.25, 0.25, 0.0]))).weights
    # Rows: (0, 1), (0, 1), (1, 2), (2, 3).
    assert own.tolist() == [0.375, 0.5, 0.125, 0]
    step = (own[:, None] * UPDATES).sum()
    assert float(step) == pytest.approx(0.5 * 0.5 + 0.25 * 0.5 + 0.25 * 2)


def test_updates_that_are_to_be_shortened_are_shortened_first():
    factors = torch.tensor([1.0, 1.0, 1.0, 0.03], dtype=torch.float64)
    shortened = replace(a_round(), factors=factors)
    mixed = NearestNeighbours(0.5).before(shortened)
    # The last one is 3 by then, as the third.
    assert mixed.client_updates.flatten().tolist() == pytest.approx([0.5, 0.5, 3, 3])
    assert mixed.factors is None


def test_two_mixings_are_one_matrix():
    stage = NearestNeighbours(0.5)
    twice = stage.before(stage.before(a_round()))
    assert twice.mixing is not None
    assert torch.allclose(twice.mixing @ UPDATES.double(), twice.client_updates.double())


@pytest.mark.parametrize("fraction", [-0.1, 2.0])
def test_a_share_that_is_none_is_named(fraction):
    with pytest.raises(ConfigError, match=f"malicious_fraction = {fraction}; "):
        NearestNeighbours(fraction)
