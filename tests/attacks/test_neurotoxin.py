from __future__ import annotations

from fedif_flower.attacks.neurotoxin import Neurotoxin
from tests.attacks.rounds import client_round


def test_the_most_used_coordinates_are_sent_back_as_they_came():
    attack, memory = Neurotoxin(0.5, spared=0.5), {}
    own = client_round([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], memory=memory)
    assert attack.poison_update(own).tolist() == [1, 1, 1, 1]  # It knows no step yet.
    own = client_round([3.0, -1.0, 0.5, -4.0], [4.0, 4.0, 4.0, 4.0], 2, memory)
    assert attack.poison_update(own).tolist() == [3, 4, 4, -4]
    assert own.trained.tolist() == [4, 4, 4, 4]


def test_without_a_share_it_is_a_pixel_trigger():
    memory = {}
    Neurotoxin(0.5, spared=0.0).poison_update(client_round([0.0], [1.0], memory=memory))
    own = client_round([2.0], [5.0], 2, memory)
    assert Neurotoxin(0.5, spared=0.0).poison_update(own) is own.trained
