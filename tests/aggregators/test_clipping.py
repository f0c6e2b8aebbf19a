from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.aggregators import LengthMemory, clipping_factors
from fedif_flower.aggregators.clipping import usual_length

lengths = st.lists(st.floats(0, 1e15), min_size=1, max_size=12)


def squares(*norms: float) -> torch.Tensor:
    return torch.tensor(norms, dtype=torch.float64).square()


def test_factors_by_hand():
    factors = clipping_factors(squares(0, 1, 6, 18, 1e15), 6.0)
    assert factors.tolist() == pytest.approx([1, 1, 1, 1 / 3, 6e-15])
    assert clipping_factors(squares(1e15), math.inf).tolist() == [1.0]


def test_the_usual_length_is_the_lower_median_of_those_that_moved():
    assert usual_length(squares(0, 0, 0, 5, 9, 7).sqrt()) == 7
    assert usual_length(squares(1, 4).sqrt()) == 1
    assert usual_length(torch.zeros(3)) == math.inf


def test_the_first_round_knows_its_own_lengths_alone():
    factors = LengthMemory(2.0).factors(1, [1, 2, 3, 4], squares(1, 1, 2, 100))
    assert factors.tolist() == pytest.approx([1, 1, 1, 2 / 100])


def test_whoever_makes_up_a_round_the_others_are_remembered():
    memory = LengthMemory(2.0)
    memory.factors(1, [1, 2, 3, 4], squares(1, 1, 1, 1))
    # Three of four in this round are far too long, three of seven among all.
    factors = memory.factors(2, [5, 6, 7, 4], squares(10, 100, 1000, 1))
    assert factors.tolist() == pytest.approx([2 / 10, 2 / 100, 2 / 1000, 1])


def test_each_client_counts_once_however_often_it_comes():
    memory = LengthMemory(1.0)
    memory.factors(1, [1, 2, 3], squares(1, 1, 1))
    for server_round in range(2, 12):
        factors = memory.factors(server_round, [4, 5], squares(10, 10))
        assert factors.tolist() == pytest.approx([0.1, 0.1])


def test_lengths_of_long_ago_are_forgotten():
    memory = LengthMemory(1.0, rounds=2)
    memory.factors(1, [1, 2, 3], squares(1, 1, 1))
    assert memory.factors(2, [4], squares(10)).tolist() == pytest.approx([0.1])
    assert memory.factors(3, [4], squares(10)).tolist() == [1.0]


@given(norms=lengths, multiple=st.floats(0.1, 100))
def test_no_update_is_longer_than_the_bound_or_than_it_was(norms, multiple):
    factors = LengthMemory(multiple).factors(1, range(len(norms)), squares(*norms))
    assert bool(((factors > 0) & (factors <= 1)).all())
    moving = sorted(n for n in squares(*norms).sqrt().tolist() if n > 0)
    if moving:
        bound = multiple * moving[(len(moving) - 1) // 2]
        assert bool((factors * torch.tensor(norms) <= bound * (1 + 1e-6)).all())


@given(
    honest=st.lists(st.floats(0.5, 2.0), min_size=3, max_size=9),
    malicious=st.lists(st.floats(0, 1e15), min_size=1, max_size=8),
)
def test_a_minority_cannot_move_the_bound_out_of_the_honest_lengths(honest, malicious):
    malicious = malicious[: len(honest) - 1]
    memory = LengthMemory(2.0)
    ids = range(len(honest))
    memory.factors(1, ids, squares(*honest))
    for server_round in range(2, 6):
        hostile = range(100, 100 + len(malicious))
        factors = memory.factors(server_round, hostile, squares(*malicious))
        left = factors * torch.tensor(malicious, dtype=torch.float64)
        assert bool((left <= 2 * max(honest) * (1 + 1e-9)).all())
