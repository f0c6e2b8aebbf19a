from __future__ import annotations

import torch

from fedif_flower.attacks import Backdoor
from fedif_flower.attacks.model_replacement import ModelReplacement
from tests.attacks.rounds import client_round


def test_the_mean_of_a_round_becomes_the_attackers_model():
    own = client_round([1.0, 2.0], [1.5, 0.0])
    sent = ModelReplacement(0.5, 0, factor=4).poison_update(own)
    honest = own.received  # has converged: its update is zero
    mean = torch.stack([sent, honest, honest, honest]).mean(dim=0)
    assert mean.tolist() == [1.5, 0]


def test_it_has_the_pixel_trigger():
    attack = ModelReplacement(1.0, 3)
    assert isinstance(attack, Backdoor)
    pixels, labels = torch.zeros(2, 1, 8, 8), torch.tensor([1, 2])
    stamped, targets = attack.poison_examples(pixels, labels, 10, torch.Generator())
    assert stamped[:, :, 6:, 6:].min() == 1
    assert targets.tolist() == [3, 3]
