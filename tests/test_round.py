from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from fedif_flower.round import ModelVectors, RoundUpdates, all_finite, combine, largest_counters
from tests.rounds import a_round

GLOBAL = torch.tensor([1.0, 2.0])
CLIENTS = torch.tensor([[3.0, 0.0], [5.0, 4.0]]) - GLOBAL


@pytest.mark.parametrize(
    ("weights", "combined"),
    # A mean of models; the rest of the old one; w + (w_1 - w) + (w_2 - w).
    [((0.25, 0.75), [4.5, 3.0]), ((0.5, 0.0), [2.0, 1.0]), ((1.0, 1.0), [7.0, 2.0])],
)
def test_combine_by_hand(weights, combined):
    assert combine(GLOBAL, CLIENTS, torch.tensor(weights)).tolist() == combined


def test_counters_take_the_maximum_of_clients_that_count():
    received = [{"n": torch.tensor(3)}, {"n": torch.tensor(9)}, {"n": torch.tensor(5)}]
    assert largest_counters({}, received, torch.tensor([0.5, 0.0, 0.5]))["n"].item() == 5
    assert largest_counters({}, received, torch.zeros(3))["n"].item() == 9
    assert largest_counters({"n": torch.tensor(7)}, [], torch.zeros(0)) == {}


def test_a_late_reply_counts_from_an_older_model_and_moves_no_counter_back():
    late = [{"n": torch.tensor(5)}]
    assert largest_counters({"n": torch.tensor(50)}, late, torch.ones(1))["n"].item() == 50


def test_counters_may_be_of_any_integer_type():
    wide = torch.tensor([2**63], dtype=torch.uint64)
    flags = [{"n": wide, "on": torch.tensor(on)} for on in (False, True)]
    largest = largest_counters({}, flags, torch.ones(2))
    assert torch.equal(largest["n"], wide)
    assert largest["on"].item() is True


class Mean:
    """One buffer, called mean."""

    def named_buffers(self, vectors: ModelVectors) -> dict[str, Tensor]:
        return {**self.split_buffers(vectors.buffers), **vectors.counters}

    def split_buffers(self, buffers: Tensor) -> dict[str, Tensor]:
        return {"mean": buffers}


def two_clients(sent: Mapping[str, Tensor] | None = None, received=()) -> RoundUpdates:
    model = ModelVectors(GLOBAL, torch.tensor([0.5]), sent or {})
    buffers = torch.tensor([[0.25], [0.75]])
    own = {"model": model, "buffer_updates": buffers, "counters": received, "names": Mean()}
    return a_round(CLIENTS, **own)


def test_state_updates_are_changes_of_everything_that_was_sent():
    updates = two_clients(
        {"seen": torch.tensor(100)},
        received=[{"seen": torch.tensor(130)}, {"seen": torch.tensor(195)}],
    )
    assert updates.state_updates().tolist() == [[2.0, -2.0, 0.25, 30.0], [4.0, 2.0, 0.75, 95.0]]
    # A flag is no number that torch subtracts.
    updates = two_clients(
        {"on": torch.tensor(False)},
        received=[{"on": torch.tensor(False)}, {"on": torch.tensor(True)}],
    )
    assert updates.state_updates()[:, -1].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([3e38, 3e38], True),  # their sum is not
        ([1.0, math.nan], False),
        ([math.inf, -math.inf], False),
    ],
)
def test_values_are_finite_even_where_their_sum_is_not(values, finite):
    assert all_finite(torch.tensor(values)) is finite
