from __future__ import annotations

import pytest
import torch

from fedif_flower.attacks.random_update import RandomUpdate, gaussian_of_length
from tests.attacks.rounds import client_round


def test_noise_is_as_long_as_the_honest_update():
    own = client_round([1.0, 1.0, 1.0], [1.0, 4.0, 5.0])  # length 5
    noise = RandomUpdate(2).poison_update(own) - own.received
    assert float(noise.norm()) == pytest.approx(10)
    again = RandomUpdate(2).poison_update(client_round([1.0, 1.0, 1.0], [1.0, 4.0, 5.0]))
    assert torch.equal(again - own.received, noise)
    other = RandomUpdate(2).poison_update(client_round([1.0, 1.0, 1.0], [1.0, 4.0, 5.0], 2))
    assert not torch.equal(other, again)


def test_its_direction_is_gaussian():
    noise = gaussian_of_length(torch.zeros(100_000), 100_000**0.5, torch.Generator().manual_seed(0))
    assert float(noise.square().mean()) == pytest.approx(1, rel=1e-4)
    # Standard error of the share within one standard deviation: 0.0015.
    assert float((noise.abs() < 1).float().mean()) == pytest.approx(0.6827, abs=0.01)


def test_who_has_not_moved_sends_no_noise():
    own = client_round([1.0, 2.0], [1.0, 2.0])
    assert RandomUpdate().poison_update(own).tolist() == [1, 2]
