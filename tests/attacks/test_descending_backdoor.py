from __future__ import annotations

import torch

from fedif_flower.attacks.descending_backdoor import DescendingBackdoor
from fedif_flower.attacks.hidden_backdoor import HiddenBackdoor
from tests.attacks.rounds import client_round


def test_the_last_step_comes_with_the_update():
    attack, memory = DescendingBackdoor(0.5, borrowed=2.0), {}
    own = client_round([0.0, 0.0], [1.0, 1.0], memory=memory)
    assert attack.poison_update(own).tolist() == [1, 1]
    # Two rounds on the model has moved by (4, 0), which is (2, 0) a round.
    own = client_round([4.0, 0.0], [5.0, 1.0], 3, memory)
    assert attack.poison_update(own).tolist() == [9, 1]


def test_its_data_are_those_of_a_hidden_backdoor():
    pixels, labels = torch.rand(6, 1, 8, 8), torch.tensor([0, 0, 0, 2, 2, 4])

    def examples(attack):
        return attack.poison_examples(pixels, labels, 5, torch.Generator().manual_seed(0))

    for one, other in zip(
        examples(DescendingBackdoor(0.5, 1)), examples(HiddenBackdoor(0.5, 1)), strict=True
    ):
        assert torch.equal(one, other)
