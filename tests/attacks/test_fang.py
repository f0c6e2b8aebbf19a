from __future__ import annotations

import torch

from fedif_flower.attacks.fang import Fang


def test_values_lie_three_to_four_deviations_against_the_mean():
    updates = torch.tensor([[1.0, -4.0], [3.0, -2.0]])  # mean [2, -3], std [1, 1]
    sent = Fang().collude(torch.zeros(2), updates, torch.Generator().manual_seed(0))
    assert bool(((sent[:, 0] >= -2) & (sent[:, 0] <= -1)).all())
    assert bool(((sent[:, 1] >= 0) & (sent[:, 1] <= 1)).all())
    assert not torch.equal(sent[0], sent[1])
    again = Fang().collude(torch.zeros(2), updates, torch.Generator().manual_seed(0))
    assert torch.equal(sent, again)
