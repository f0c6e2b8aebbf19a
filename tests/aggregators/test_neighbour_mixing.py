from __future__ import annotations

import pytest
import torch

from fedif_flower.aggregators import neighbour_mixing

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
