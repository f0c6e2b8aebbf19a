from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.aggregators import clipping_factors

lengths = st.lists(st.floats(0, 1e15), min_size=1, max_size=12)


def squares(*norms: float) -> torch.Tensor:
    return torch.tensor(norms, dtype=torch.float64).square()


def test_by_hand():
    # Median 2, bound 3 * 2: a third of 18 is left, and 1e15 is 1e15 no more.
    factors = clipping_factors(squares(1, 2, 2, 18, 1e15), 3.0)
    assert factors.tolist() == pytest.approx([1, 1, 1, 1 / 3, 6e-15])


def test_of_an_even_number_the_lower_middle_counts():
    assert clipping_factors(squares(1, 4), 2.0).tolist() == pytest.approx([1, 0.5])


def test_who_changed_nothing_does_not_lower_the_bound():
    assert clipping_factors(squares(0, 0, 0, 5, 5), 1.0).tolist() == [1, 1, 1, 1, 1]
    assert clipping_factors(squares(0, 0), 1.0).tolist() == [1, 1]


@given(norms=lengths, multiple=st.floats(0.1, 100))
def test_no_update_is_longer_than_the_bound_or_than_it_was(norms, multiple):
    factors = clipping_factors(squares(*norms), multiple)
    assert bool(((factors > 0) & (factors <= 1)).all())
    moving = sorted(n for n in squares(*norms).sqrt().tolist() if n > 0)
    if moving:
        bound = multiple * moving[(len(moving) - 1) // 2]
        assert bool((factors * torch.tensor(norms) <= bound * (1 + 1e-6)).all())
