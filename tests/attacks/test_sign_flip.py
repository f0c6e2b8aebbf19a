from __future__ import annotations

from fedif_flower.attacks.sign_flip import SignFlip
from tests.attacks.rounds import client_round


def test_the_update_is_turned_around():
    own = client_round([1.0, 2.0], [1.5, 0.0])  # u = [0.5, -2]
    assert SignFlip().poison_update(own).tolist() == [0.5, 4]
    assert SignFlip(4).poison_update(own).tolist() == [-1, 10]
    assert own.trained.tolist() == [1.5, 0]
