from __future__ import annotations

import torch

from fedif_flower.attacks.scaling import HonestScaling, Scaling
from tests.attacks.rounds import client_round


def test_the_update_is_longer():
    own = client_round([1.0, 2.0], [1.5, 0.0])
    assert HonestScaling(10).poison_update(own).tolist() == [6, -18]
    assert Scaling(0.5, 100).poison_update(own).tolist() == [51, -198]


def test_only_one_of_them_lies_about_labels():
    labels, generator = torch.arange(10), torch.Generator().manual_seed(0)
    assert HonestScaling().poison_labels(labels, 10, generator) is labels
    assert int((Scaling(0.5).poison_labels(labels, 10, generator) != labels).sum()) == 5
