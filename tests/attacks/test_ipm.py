from __future__ import annotations

import torch

from fedif_flower.attacks.ipm import InnerProductManipulation


def test_all_send_the_mean_turned_around():
    updates = torch.tensor([[1.0, -2.0], [3.0, 0.0]])  # mean [2, -1]
    sent = InnerProductManipulation(0.5).collude(torch.zeros(2), updates, torch.Generator())
    assert sent.tolist() == [[-1, 0.5]] * 2
