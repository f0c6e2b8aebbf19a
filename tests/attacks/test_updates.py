from __future__ import annotations

import pytest
import torch

from fedif_flower.attacks import ClientRound
from fedif_flower.attacks.free_riders import RepeatStep, ReturnModel, ReturnWithNoise
from fedif_flower.attacks.gradient_noise import GradientNoise
from fedif_flower.attacks.model_replacement import ModelReplacement
from fedif_flower.attacks.random_update import RandomUpdate
from fedif_flower.attacks.scaling import HonestScaling, Scaling
from fedif_flower.attacks.sign_flip import SignFlip


def client_round(received, trained, server_round=1, memory=None) -> ClientRound:
    """A client's round on small vectors."""
    return ClientRound(
        torch.tensor(received),
        torch.tensor(trained),
        server_round,
        torch.Generator().manual_seed(server_round),
        {} if memory is None else memory,
    )


@pytest.mark.parametrize(
    ("attack", "sent"),
    [
        (SignFlip(), [0.5, 4]),
        (SignFlip(4), [-1, 10]),
        (HonestScaling(10), [6, -18]),
        (Scaling(0.5, 100), [51, -198]),
        (ModelReplacement(0.5, 0, factor=4), [3, -6]),
        (ReturnModel(), [1, 2]),
    ],
)
def test_the_update_is_turned_lengthened_or_left_out(attack, sent):
    own = client_round([1.0, 2.0], [1.5, 0.0])  # u = [0.5, -2]
    assert attack.poison_update(own).tolist() == sent
    assert own.trained.tolist() == [1.5, 0]


def test_noise_has_the_given_standard_deviation_and_no_mean():
    own = client_round([0.0] * 100_000, [3.0] * 100_000)
    noise = GradientNoise(0.1).poison_update(own) - own.trained
    # Standard errors at n = 100,000: mean 0.1 / 316 = 0.00032, std 0.1 / 447 = 0.00022.
    assert abs(float(noise.mean())) < 0.002
    assert float(noise.std()) == pytest.approx(0.1, abs=0.0015)
    assert float((noise.abs() < 0.1).float().mean()) == pytest.approx(0.6827, abs=0.01)
    assert torch.equal(GradientNoise(0.0).poison_update(own), torch.full((100_000,), 3.0))


def test_noise_is_as_long_as_the_honest_update_or_the_last_global_step():
    own = client_round([1.0, 1.0, 1.0], [1.0, 4.0, 5.0])  # length 5
    noise = RandomUpdate(2).poison_update(own) - own.received
    assert float(noise.norm()) == pytest.approx(10)
    again = client_round([1.0, 1.0, 1.0], [1.0, 4.0, 5.0])
    assert torch.equal(RandomUpdate(2).poison_update(again) - own.received, noise)
    later = client_round([1.0, 1.0, 1.0], [1.0, 4.0, 5.0], 2)
    assert not torch.equal(RandomUpdate(2).poison_update(later) - own.received, noise)
    memory = {}
    first = ReturnWithNoise().poison_update(client_round([1.0, 1.0], [9.0, 9.0], 1, memory))
    assert first.tolist() == [1, 1]
    own = client_round([7.0, 9.0], [9.0, 9.0], 3, memory)  # [6, 8] in two rounds: 5 a round
    noise = ReturnWithNoise(2).poison_update(own) - own.received
    assert float(noise.norm()) == pytest.approx(10)


def test_the_last_global_step_is_sent_again():
    memory = {}
    first = RepeatStep(2).poison_update(client_round([1.0, 2.0], [9.0, 9.0], 3, memory))
    assert first.tolist() == [1, 2]  # it knows no step yet
    # Two rounds later the model is [+3, -1] further: [1.5, -0.5] a round.
    second = RepeatStep(2).poison_update(client_round([4.0, 1.0], [9.0, 9.0], 5, memory))
    assert second.tolist() == [4 + 3, 1 - 1]
    third = RepeatStep().poison_update(client_round([5.0, 1.0], [9.0, 9.0], 6, memory))
    assert third.tolist() == [6, 1]
