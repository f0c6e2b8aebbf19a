from __future__ import annotations

import torch

from fedif_flower.attacks.mimic import Mimic


def test_all_send_the_update_furthest_along_the_main_direction():
    # The spread is along the first axis; the mean is [2, 0].
    updates = torch.tensor([[0.0, 1.0], [0.5, -1.0], [1.5, 0.0], [6.0, 0.0]])
    sent = Mimic().collude(torch.zeros(2), updates, torch.Generator())
    assert sent.tolist() == [[6, 0]] * 4


def test_alone_it_is_honest():
    updates = torch.tensor([[1.0, 2.0]])
    assert torch.equal(Mimic().collude(torch.zeros(2), updates, torch.Generator()), updates)
