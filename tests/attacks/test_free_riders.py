from __future__ import annotations

import pytest

from fedif_flower.attacks.free_riders import RepeatStep, ReturnModel, ReturnWithNoise
from tests.attacks.rounds import client_round


def test_the_model_comes_back():
    assert ReturnModel().poison_update(client_round([1.0, 2.0], [5.0, 5.0])).tolist() == [1, 2]


def test_the_last_global_step_is_sent_again():
    memory = {}
    first = RepeatStep(2).poison_update(client_round([1.0, 2.0], [9.0, 9.0], 3, memory))
    assert first.tolist() == [1, 2]  # it knows no step yet
    # Two rounds later the model is [+3, -1] further: [1.5, -0.5] a round.
    second = RepeatStep(2).poison_update(client_round([4.0, 1.0], [9.0, 9.0], 5, memory))
    assert second.tolist() == [4 + 3, 1 - 1]
    third = RepeatStep().poison_update(client_round([5.0, 1.0], [9.0, 9.0], 6, memory))
    assert third.tolist() == [6, 1]


def test_noise_is_as_long_as_the_last_global_step():
    memory = {}
    first = ReturnWithNoise().poison_update(client_round([1.0, 1.0], [9.0, 9.0], 1, memory))
    assert first.tolist() == [1, 1]
    own = client_round([7.0, 9.0], [9.0, 9.0], 3, memory)  # [6, 8] in two rounds: 5 a round
    noise = ReturnWithNoise(2).poison_update(own) - own.received
    assert float(noise.norm()) == pytest.approx(10)
