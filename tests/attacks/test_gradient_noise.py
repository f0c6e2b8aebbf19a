from __future__ import annotations

import pytest
import torch

from fedif_flower.attacks import ClientRound
from fedif_flower.attacks.gradient_noise import GradientNoise, add_gaussian


def test_noise_has_the_given_standard_deviation_and_no_mean():
    params = torch.full((100_000,), 3.0)
    noise = add_gaussian(params, 0.1, torch.Generator().manual_seed(0)) - params
    # Standard errors at n = 100,000: mean 0.1 / 316 = 0.00032, std 0.1 / 447 = 0.00022.
    assert abs(float(noise.mean())) < 0.002
    assert float(noise.std()) == pytest.approx(0.1, abs=0.0015)
    assert float((noise.abs() < 0.1).float().mean()) == pytest.approx(0.6827, abs=0.01)
    assert torch.equal(params, torch.full((100_000,), 3.0))


def test_no_standard_deviation_no_noise():
    params = torch.randn(10)
    assert torch.equal(add_gaussian(params, 0.0, torch.Generator()), params)


def test_same_generator_same_noise_and_each_call_draws_anew():
    attack, params = GradientNoise(0.5), torch.zeros(8)
    own, same = (ClientRound(params, params, 1, torch.Generator().manual_seed(4)) for _ in range(2))
    first, second = (attack.poison_update(own) for _ in range(2))
    again = attack.poison_update(same)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
