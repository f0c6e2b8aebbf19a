from __future__ import annotations

from functools import partial
from math import sqrt

import pytest
import torch

from fedif_flower.stages import FedAdagrad, FedAdam, FedAvgM, FedYogi, ServerOptimizer


def go(optimizer: ServerOptimizer, start: float, *steps: float) -> list[float]:
    """Return where a model of one parameter is after each step."""
    place, places = torch.tensor([start], dtype=torch.float64), []
    for step in steps:
        place = optimizer.advance(place, place + step)
        places.append(place.item())
    return places


def test_momentum_by_hand():
    # The sums are 4, then 2 + 8 = 10, then 5 + 0.
    assert go(FedAvgM(0.5, 1.0), 1.0, 4.0, 8.0, 0.0) == [5.0, 15.0, 20.0]
    # Their halves are the running means 2, 5 and 2.5.
    assert go(optimizer := FedAvgM(0.5, 0.5), 1.0, 4.0, 8.0, 0.0) == [3.0, 8.0, 10.5]
    assert optimizer.shares == [0.5, 0.25, 0.125]


@pytest.mark.parametrize(
    ("kind", "squares"),
    [
        (FedAdagrad, [1 + 4, 1 + 4 + 9]),
        (FedAdam, [0.5 + 2, 1.25 + 4.5]),
        (FedYogi, [1 + 2, 3 + 4.5]),  # 1 is below 4 and 3 below 9: both grow.
    ],
)
def test_two_steps_of_reddi_s_algorithm_by_hand(kind, squares):
    """Steps 2 and 3 with tau = 1, so that v begins at 1; both betas 1/2: m = 1, then 2."""
    found = go(kind(learning_rate=0.1, beta1=0.5, beta2=0.5, tau=1.0), 0.0, 2.0, 3.0)
    first = 0.1 * 1 / (sqrt(squares[0]) + 1)
    second = first + 0.1 * 2 / (sqrt(squares[1]) + 1)
    assert found == pytest.approx([first, second])


def test_any_optimizer_of_torch_moves_the_model():
    optimizer = ServerOptimizer(partial(torch.optim.Adam, lr=0.5, eps=0.0))
    assert go(optimizer, 1.0, 8.0, 8.0) == pytest.approx([1.5, 2.0])  # Bias is corrected there.


OPTIMIZERS = pytest.mark.parametrize("make", [FedAvgM, FedAdam, FedYogi, FedAdagrad])


@OPTIMIZERS
def test_looking_ahead_changes_nothing_and_what_was_taken_back_is_forgotten(make):
    plain, other = make(), make()
    expected = go(plain, 0.0, 4.0, 8.0)
    go(other, 0.0, 4.0, 1e9)
    other.take_back()
    before = torch.tensor([expected[0]], dtype=torch.float64)
    assert other.lead(before, before + 8).item() == expected[1]
    assert go(other, expected[0], 8.0) == expected[1:]


@OPTIMIZERS
def test_goes_on_after_a_restart(make):
    first, second = make(), make()
    go(first, 0.0, 1.0, 2.0)
    kept = first.state_dict()
    second.load_state_dict(kept)
    third = go(second, 5.0, 3.0, 4.0)
    assert go(first, 5.0, 3.0, 4.0) == third
    assert second.shares == first.shares
    (again := make()).load_state_dict(kept)  # As it was when asked for.
    assert go(again, 5.0, 3.0, 4.0) == third
