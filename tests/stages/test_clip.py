from __future__ import annotations

import pytest
import torch

from fedif_flower.errors import ConfigError
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.stages import Clip


def updates(**given) -> RoundUpdates:
    """Return a round of three, of parameters as long as 1, 1 and 8, of buffers 1, 1 and 10."""
    params = torch.tensor([[1.0], [1.0], [8.0]])
    return RoundUpdates(
        server_round=1,
        client_ids=(0, 1, 2),
        num_examples=torch.ones(3),
        model=ModelVectors(torch.zeros(1), torch.zeros(1)),
        client_updates=params,
        squared_norms=params.double().square().sum(dim=1),
        buffer_updates=torch.tensor([[1.0], [1.0], [10.0]]),
        **given,
    )


def test_parameters_and_buffers_are_held_to_the_multiple_of_their_own_lengths():
    clipped = Clip(2.0).before(updates())
    assert clipped.shortening.tolist() == pytest.approx([1.0, 1.0, 2 / 8])
    assert clipped.buffer_shortening.tolist() == pytest.approx([1.0, 1.0, 2 / 10])
    assert clipped.client_updates.tolist() == [[1.0], [1.0], [8.0]]  # Scores see them whole.


def test_what_an_earlier_stage_shortened_stays_so_short():
    halved = torch.tensor([1.0, 0.5, 0.5], dtype=torch.float64)
    clipped = Clip(2.0).before(updates(factors=halved, buffer_factors=halved.flip(0)))
    assert clipped.shortening.tolist() == pytest.approx([1.0, 0.5, 0.5 * 2 / 8])
    assert clipped.buffer_shortening.tolist() == pytest.approx([0.5, 0.5, 2 / 10])


def test_a_clip_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="multiple = 0; allowed: > 0"):
        Clip(0)
