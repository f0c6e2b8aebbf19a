from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.valuation.shapley import Utility, exact_shapley


def game(table: list[float]) -> Utility:
    """The game whose coalition with bits r is worth table[r]."""
    values = torch.tensor(table, dtype=torch.float64)

    def utility(masks: Tensor) -> Tensor:
        return values[masks.long() @ 2 ** torch.arange(masks.shape[1])]

    return utility


def assert_values(utility: Utility, expected: list[float]) -> None:
    torch.testing.assert_close(
        exact_shapley(utility, len(expected)),
        torch.tensor(expected, dtype=torch.float64),
        rtol=0,
        atol=1e-12,
    )


tables = st.integers(1, 5).flatmap(
    lambda m: st.lists(st.floats(-10, 10), min_size=2**m, max_size=2**m)
)


def test_glove_game() -> None:
    # One left glove (client 0), two right ones; a pair is worth 1.
    assert_values(lambda masks: masks[:, 0] & masks[:, 1:].any(dim=1), [2 / 3, 1 / 6, 1 / 6])


@given(tables)
def test_equals_the_mean_over_all_orders(table: list[float]) -> None:
    m = len(table).bit_length() - 1
    orders = list(permutations(range(m)))
    expected = [0.0] * m
    for order in orders:
        row = 0
        for client in order:
            expected[client] += (table[row + 2**client] - table[row]) / len(orders)
            row += 2**client
    values = exact_shapley(game(table), m)
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64))


def test_more_than_twenty_clients_are_refused_with_advice() -> None:
    with pytest.raises(ValuationError, match=r"num_clients <= 20; use complementary_shapley"):
        exact_shapley(lambda masks: masks.sum(dim=1), 21)
