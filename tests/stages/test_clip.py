from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.round import ModelVectors
from fedif_flower.stages import Clip
from tests.rounds import a_round


def updates(**given):
    """Return a round of three, of parameters as long as 1, 1 and 8, of buffers 1, 1 and 10."""
    buffers = {"model": ModelVectors(torch.zeros(1), torch.zeros(1))}
    buffers["buffer_updates"] = torch.tensor([[1.0], [1.0], [10.0]])
    return a_round(torch.tensor([[1.0], [1.0], [8.0]]), **buffers, **given)


def test_parameters_and_buffers_are_held_to_the_multiple_of_their_own_lengths():
    clipped = Clip(2.0).before(updates())
    assert clipped.shortening.tolist() == pytest.approx([1.0, 1.0, 2 / 8])
    assert clipped.buffer_shortening.tolist() == pytest.approx([1.0, 1.0, 2 / 10])
    assert clipped.client_updates.tolist() == [[1.0], [1.0], [8.0]]  # Scores see them whole.
    # What an earlier stage shortened stays so short.
    halved = torch.tensor([1.0, 0.5, 0.5], dtype=torch.float64)
    clipped = Clip(2.0).before(updates(factors=halved, buffer_factors=halved.flip(0)))
    assert clipped.shortening.tolist() == pytest.approx([1.0, 0.5, 0.5 * 2 / 8])
    assert clipped.buffer_shortening.tolist() == pytest.approx([0.5, 0.5, 2 / 10])


def squares(*norms: float) -> torch.Tensor:
    return torch.tensor(norms, dtype=torch.float64).square()


def test_each_client_counts_once_whoever_makes_up_a_round_until_it_is_forgotten():
    clip = Clip(2.0)
    clip.factors(1, [1, 2, 3, 4], squares(1, 1, 1, 1))
    # Three of four in this round are far too long, three of seven among all.
    found = clip.factors(2, [5, 6, 7, 4], squares(10, 100, 1000, 1))
    assert found.tolist() == pytest.approx([2 / 10, 2 / 100, 2 / 1000, 1])
    for server_round in range(3, 21):
        assert clip.factors(server_round, [5], squares(10)).tolist() == pytest.approx([0.2])
    # The lengths of round 1 are out of its memory.
    assert clip.factors(21, [5, 6, 7], squares(10, 10, 10)).tolist() == [1.0] * 3


@given(
    honest=st.lists(st.floats(0.5, 2.0), min_size=3, max_size=9),
    malicious=st.lists(st.floats(0, 1e15), min_size=1, max_size=8),
)
def test_a_minority_cannot_move_the_bound_out_of_the_honest_lengths(honest, malicious):
    malicious = malicious[: len(honest) - 1]
    clip = Clip(2.0)
    clip.factors(1, range(len(honest)), squares(*honest))
    for server_round in range(2, 6):
        hostile = range(100, 100 + len(malicious))
        factors = clip.factors(server_round, hostile, squares(*malicious))
        assert bool(((factors > 0) & (factors <= 1)).all())
        left = factors * torch.tensor(malicious, dtype=torch.float64)
        assert bool((left <= 2 * max(honest) * (1 + 1e-9)).all())
