from __future__ import annotations

import pytest
import torch

from fedif_flower.aggregators import neighbour_mixing
from fedif_flower.aggregators.neighbour_mixing import mix, unmixed
from fedif_flower.errors import ValuationError
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates

UPDATES = torch.tensor([[0.0], [1.0], [3.0], [100.0]])


def test_each_update_becomes_the_mean_of_those_nearest_to_it():
    mixing = neighbour_mixing(UPDATES, 2)
    assert (mixing @ UPDATES.double()).flatten().tolist() == [0.5, 0.5, 2, 51.5]
    mixing = neighbour_mixing(UPDATES, 1)
    assert (mixing @ UPDATES.double()).flatten().tolist() == pytest.approx(
        [4 / 3, 4 / 3, 4 / 3, 104 / 3]
    )
    assert mixing.sum(dim=1).tolist() == pytest.approx([1] * 4)


def test_nobody_left_out_gives_the_mean_and_all_but_one_leaves_all_as_they_are():
    assert torch.allclose(neighbour_mixing(UPDATES, 0), torch.full((4, 4), 0.25).double())
    assert torch.equal(neighbour_mixing(UPDATES, 3), torch.eye(4, dtype=torch.float64))
    with pytest.raises(ValuationError, match="num_malicious is 4; allowed: 0 to 3"):
        neighbour_mixing(UPDATES, 4)


def test_a_round_is_mixed_and_weights_go_back_to_the_clients():
    updates = RoundUpdates(
        server_round=1,
        client_ids=(0, 1, 2, 3),
        num_examples=torch.ones(4, dtype=torch.float64),
        model=ModelVectors(torch.zeros(1), torch.zeros(1)),
        client_updates=UPDATES,
        squared_norms=UPDATES.double().square().sum(dim=1),
        buffer_updates=10 * UPDATES,
    )
    mixed, mixing = mix(updates, 0.5)
    assert mixed.client_updates.flatten().tolist() == [0.5, 0.5, 2, 51.5]
    assert mixed.buffer_updates.flatten().tolist() == [5, 5, 20, 515]
    assert mixed.squared_norms.tolist() == [0.25, 0.25, 4, 51.5**2]
    own = unmixed(Aggregation(weights=torch.tensor([0.5, 0.25, 0.25, 0.0])), mixing).weights
    # Rows: (0, 1), (0, 1), (1, 2), (2, 3).
    assert own.tolist() == [0.375, 0.5, 0.125, 0]
    step = (own[:, None] * UPDATES).sum()
    assert float(step) == pytest.approx(0.5 * 0.5 + 0.25 * 0.5 + 0.25 * 2)


def test_without_it_the_round_stays_as_it_is():
    aggregation = Aggregation(weights=torch.ones(1))
    assert unmixed(aggregation, None) is aggregation
