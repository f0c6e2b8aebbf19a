"""Values bounded by the clients' own spread."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.aggregators.spread import bound_by_spread


def bounded(values: list[float], multiple: float = 3.0) -> list[float]:
    changes = torch.tensor(values)[:, None]
    bound_by_spread(changes, multiple)
    return changes[:, 0].tolist()


def test_an_outlier_is_replaced_by_the_median():
    # Votes 0, 1, 2, 100: median 1.5, deviations 0.5, 0.5, 1.5, 98.5 with median 1. Then -100, 0,
    # 1, 2: median 0.5, deviations 0.5, 0.5, 1.5, 100.5 with median 1.
    assert bounded([1.0, 2.0, 100.0]) == [1.0, 2.0, 1.5]
    assert bounded([1.0, 2.0, -100.0], multiple=2.0) == [1.0, 2.0, 0.5]


def test_what_most_leave_alone_stays_exactly():
    assert bounded([0.0, 0.0, 5.0, 0.0]) == [0.0] * 4
    # One of two: the received value has a vote.
    assert bounded([0.0, 5.0]) == [0.0, 0.0]


def test_every_column_and_block_has_bounds_of_its_own():
    columns = (1 << 16) + 3
    changes = torch.ones(5, columns)
    changes[:, 1] = 0.0
    changes[2] = 1e12
    bound_by_spread(changes, 3.0)
    expected = torch.ones(5, columns)
    expected[:, 1] = 0.0
    assert torch.equal(changes, expected)


values = st.floats(-100, 100, width=32)


@given(st.lists(values, min_size=1, max_size=8), st.data())
def test_a_minority_moves_nothing_beyond_what_the_others_allow(honest, data):
    hostile = data.draw(st.lists(st.floats(-1e15, 1e15), max_size=len(honest), unique=True))
    lowest, highest = min([0.0, *honest]), max([0.0, *honest])
    reach = 3.0 * (highest - lowest) * (1 + 1e-5)
    for value in bounded([*honest, *hostile]):
        assert lowest - reach <= value <= highest + reach
