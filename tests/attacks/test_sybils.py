from __future__ import annotations

import pytest
import torch

from fedif_flower.attacks.sybils import Sybils

UPDATES = torch.tensor([[3.0, 4.0], [9.0, 9.0], [7.0, 7.0]])


def test_every_identity_sends_the_owners_update():
    assert Sybils().collude(torch.zeros(2), UPDATES, torch.Generator()).tolist() == [[3, 4]] * 3


def test_noise_of_the_given_length_hides_the_copies():
    sent = Sybils(0.1).collude(torch.zeros(2), UPDATES, torch.Generator().manual_seed(0))
    noise = sent - UPDATES[0]
    assert noise.norm(dim=1).tolist() == pytest.approx([0.5] * 3, rel=1e-5)
    assert not torch.equal(sent[0], sent[1])
