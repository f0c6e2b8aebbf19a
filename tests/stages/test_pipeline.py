"""One parameter w and the loss |w - 3| on the validation set: worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedif_flower.errors import CheckpointError, ConfigError
from fedif_flower.round import ModelVectors
from fedif_flower.stages import (
    Bucketing,
    Clip,
    Destination,
    FedAdam,
    FedAvgM,
    LossBound,
    MaxLength,
    NearestNeighbours,
    Stages,
)
from fedif_flower.valuation import Validation
from tests.rounds import a_round


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * inputs


def distance(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean()


def held_out(loss_fn=distance) -> Validation:
    ones = torch.ones(2, 1)
    return Validation(Point(), ones, 3 * ones, loss_fn=loss_fn, device="cpu")


def bounds() -> Stages:
    return Stages([Clip(2.0), LossBound(held_out())])


def settle(
    stages: Stages,
    start: float,
    *steps: float,
    weights: Sequence[float] = (),
    server_round: int = 1,
    **given: Any,
) -> Destination:
    """Return where weights, equal ones by default, lead from ``start``."""
    model = ModelVectors(torch.tensor([start]), torch.zeros(0))
    updates = a_round(torch.tensor(steps)[:, None], server_round=server_round, model=model, **given)
    chosen = weights or [1 / len(steps)] * len(steps)
    return stages.settle(stages.before(updates), torch.tensor(chosen, dtype=torch.float64))


def led_to(*of: Any, **given: Any) -> float:
    return settle(*of, **given).params.item()


def test_updates_that_raise_the_loss_lose_their_weight():
    # Bounded by 4, the mean of 1, 2, 2, -4 and -4 is -3 / 5: beyond 10 % of the loss at the start.
    assert 1.0 < led_to(bounds(), 0.0, 1.0, 2.0, 2.0, -9.0, -9.0) <= 2.0


def test_nothing_is_remembered_of_a_step_that_missed_the_bound():
    subject = bounds()
    settle(subject, 0.0, -2.0)
    assert led_to(subject, -0.125, 2.0, server_round=2) == pytest.approx(1.875)
    # The usual length is 1/4 by then, the bound 1/2.
    third = led_to(subject, 1.875, 2.0, 0.25, server_round=3)
    assert third == pytest.approx(1.875 + (0.5 + 0.25) / 2)


def test_the_least_loss_counts_not_the_last():
    subject = bounds()
    assert led_to(subject, 0.0, 3.0) == 3.0
    # Loss 0 was reached; the bound is 0.3, wherever the model is now.
    assert led_to(subject, 3.0, -0.25, server_round=2) == 2.75
    assert led_to(subject, 2.75, -0.25, server_round=3) == 2.75 - 0.25 / 16


def test_the_state_of_other_stages_is_refused():
    with pytest.raises(CheckpointError, match=r"stages: \[FedAvgM.*; saved"):
        Stages([FedAvgM(0.5, 0.5)]).load_state_dict(bounds().state_dict())


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([2.0], r"stages: 2\.0; allowed: stages, such as Clip"),
        ([LossBound(), LossBound()], "one that chooses where a round leads"),
    ],
)
def test_what_are_no_stages_is_named(stages, words):
    with pytest.raises(ConfigError, match=words):
        Stages(stages)


def test_a_longer_update_is_shortened_in_place_as_it_arrives():
    update = torch.tensor([3.0, 4.0])
    arrive = Stages([MaxLength(1.0)]).arrive
    assert arrive(update, 25.0) == arrive(update, 1.0) == 1.0
    assert update.tolist() == pytest.approx([0.6, 0.8])
    assert Stages([MaxLength(5.0)]).arrive(update, 1.0) == 1.0


@pytest.mark.parametrize(
    ("stage", "key", "value"),
    [
        (Bucketing, "size", 1),
        (Clip, "multiple", 0),
        (LossBound, "tolerance", math.inf),
        (LossBound, "descent_steps", -1),
        (MaxLength, "max_length", math.nan),
        (NearestNeighbours, "malicious_fraction", 2.0),
        (FedAvgM, "momentum", 1.0),
        (FedAdam, "beta2", math.nan),
    ],
)
def test_a_setting_out_of_range_is_named(stage, key, value):
    with pytest.raises(ConfigError, match=f"{key} = {value}; allowed: "):
        stage(**{key: value})
