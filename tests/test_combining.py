"""The new model, combined by hand."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.combining import combine, hold_within, largest_counters

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


def test_combined_statistics_lie_within_what_was_sent_and_received():
    sent = torch.tensor([1.0, 1.0, 1.0])
    changes = torch.tensor([[-0.9, 2.0, 1.0], [-0.5, 1.0, 1.0]])
    # Coefficients of FLTrust may sum to more than 1: a variance of 1 - 1.4 is none.
    combined = sent + changes.sum(dim=0)
    assert hold_within(combined, sent, changes).tolist() == pytest.approx([0.1, 3.0, 2.0])
    # The received value counts too: no weight leaves it where it is.
    assert hold_within(sent, sent, changes).tolist() == [1.0, 1.0, 1.0]
