"""What a round takes where its own step loses too much, on the loss |w - 3| of one parameter w."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.stages import FedAvgM, LossBound, Stages
from tests.stages.test_pipeline import distance, held_out, led_to, settle


def test_who_has_no_weight_may_be_all_that_helps():
    # The whole step leads to -4, a sixteenth of it to -1/4; the other member's alone to 2.
    assert led_to(Stages([LossBound(held_out())]), 0.0, -4.0, 2.0, weights=[1.0, 0.0]) > 1.0


def test_updates_that_nobody_sees_are_shortened_alone():
    sums: list[Tensor] = []

    def summed(weights: Tensor) -> Tensor:
        sums.append(weights)
        return (weights @ torch.tensor([-4.0, 2.0], dtype=torch.float64)).float().reshape(1)

    bound, hidden = Stages([LossBound(held_out())]), SimpleNamespace(summed=summed)
    step = settle(bound, 0.0, -4.0, 2.0, hidden=hidden)
    assert step.coefficients.tolist() == [0.5 / 16, 0.5 / 16]
    assert len(sums) == 5


def test_where_no_step_has_a_finite_loss_the_round_fails():
    def here_alone(outputs: Tensor, targets: Tensor) -> Tensor:
        lost = distance(outputs, targets)
        return torch.where(lost == 3.0, lost, math.nan)

    with pytest.raises(ValuationError, match="no step leads to a finite validation loss"):
        settle(Stages([LossBound(held_out(here_alone))]), 0.0, 1.0)


def test_a_model_that_swings_goes_on_swinging():
    """Each step overshoots: it leads from one side of 3 to the other, and on."""
    bound, place, places = Stages([LossBound(held_out())]), 0.0, []
    for _ in range(20):
        place = led_to(bound, place, 2.5 * (3.0 - place))
        places.append(place)
    assert all(a != b for a, b in pairwise(places) if a != 3.0)
    assert abs(place - 3.0) < 0.5


def test_a_step_that_misses_the_bound_begins_a_new_mean():
    momentum = FedAvgM(0.5, 0.5)
    momentum.advance(torch.zeros(1), torch.tensor([-8.0]))
    assert momentum.moves_on
    bound = LossBound(held_out())
    assert bound.remark() == ""
    settle(Stages([bound, momentum]), 0.0, -1.0)
    assert bound.remark().startswith("in 1 round the whole step would have raised the validation")
    assert not momentum.moves_on


def test_without_a_validation_set_every_step_is_taken():
    assert led_to(Stages([LossBound()]), 0.0, -4.0) == -4.0
