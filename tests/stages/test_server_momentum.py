from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.errors import ConfigError
from fedif_flower.stages import ServerMomentum


def go(momentum: ServerMomentum, start: float, *steps: float) -> list[float]:
    """Return where a model of one parameter is after each step."""
    place, places = torch.tensor([start], dtype=torch.float64), []
    for step in steps:
        place = momentum.advance(place, place + step)
        places.append(place.item())
    return places


def test_a_few_steps_by_hand():
    # The means are 2, then 1 + 4 = 5, then 2.5 + 0.
    assert go(ServerMomentum(0.5), 1.0, 4.0, 8.0, 0.0) == [3.0, 8.0, 10.5]


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_the_shares_make_up_the_step(steps, beta):
    momentum = ServerMomentum(beta)
    go(momentum, 0.0, *steps)
    expected = sum(a * s for a, s in zip(momentum.shares, reversed(steps), strict=True))
    assert momentum.mean.item() == pytest.approx(expected, abs=1e-9)


def test_looking_ahead_changes_nothing():
    momentum = ServerMomentum(0.5)
    go(momentum, 0.0, 4.0)
    before = torch.tensor([2.0], dtype=torch.float64)
    assert momentum.lead(before, before + 8).item() == 7.0
    assert momentum.mean.item() == 2.0
    assert momentum.advance(before, before + 8).item() == 7.0


def test_a_model_taken_back_takes_its_mean_with_it():
    momentum = ServerMomentum(0.5)
    go(momentum, 0.0, 4.0, 1e9)
    momentum.take_back()
    assert momentum.mean.item() == 2.0
    assert momentum.shares == [0.5]


def test_a_new_beginning():
    momentum = ServerMomentum(0.5)
    go(momentum, 0.0, 4.0)
    momentum.restart()
    assert momentum.mean is None
    assert go(momentum, 2.0, 8.0) == [6.0]


def test_goes_on_after_a_restart():
    first, second = ServerMomentum(0.3), ServerMomentum(0.3)
    go(first, 0.0, 1.0, 2.0)
    kept = first.state_dict()
    second.load_state_dict(kept)
    assert second.shares == first.shares
    assert go(first, 5.0, 3.0, 4.0) == go(second, 5.0, 3.0, 4.0)
    assert kept["mean"].item() == pytest.approx(0.3 * 0.7 + 0.7 * 2)  # As it was when asked for.


@pytest.mark.parametrize("beta", [-0.1, 0.0, 1.0, float("nan")])
def test_a_share_out_of_range_is_refused(beta):
    with pytest.raises(ConfigError, match="beta"):
        ServerMomentum(beta)
