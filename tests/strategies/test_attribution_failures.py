"""Path attribution where rounds fail, losses are not finite, and steps are taken back or go on."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedif_flower import FedAvg, PathAttribution, Validation
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import FedAvgM
from fedif_flower.strategies import Setup
from fedif_flower.strategies.callbacks import Callback
from tests.strategies.attributing import (
    ROUNDING,
    attributed,
    fedavg,
    squared,
    validation,
    values,
)
from tests.strategies.lines import Movers, point


class Failing(Movers):
    """Some clients raise an error in round 2."""

    def __init__(self, steps: list[list[float]], failing: range) -> None:
        super().__init__(steps)
        self.failing = failing

    def __call__(self, message, context):
        if (
            message.metadata.message_type != "query"
            and message.content.config_records["config"]["server-round"] == 2
            and int(context.node_config["partition-id"]) in self.failing
        ):
            raise RuntimeError("no data today")
        return super().__call__(message, context)


def test_a_failed_round_has_no_clients_and_no_decrease():
    movers = Failing([[1.0, 0.5], [0.5, 1.0], [0.0, 0.0]], failing=range(1))
    callback = attributed(
        lambda v, **base: fedavg(
            v, **base | {"setup": replace(base["setup"], min_valid_replies=3)}
        ),
        movers,
        3,
    )
    first, failed, last = callback.rounds
    assert failed.clients == ()
    assert failed.decrease == failed.attributed == failed.remainder == 0.0
    assert failed.loss_before == failed.loss_after == first.loss_after == last.loss_before


def test_a_round_that_takes_the_last_step_back_takes_its_contributions_back():
    # Everybody fails on the model of round 1: it may be why, and is given up.
    movers = Failing([[1.0, 0.5], [0.5, 1.0], [0.0, 0.0]], failing=range(3))
    callback = attributed(fedavg, movers, 3)
    first, failed, last = callback.rounds
    assert first.attributed > 0
    assert values(failed) == [-value for value in values(first)]
    assert failed.decrease == -first.decrease
    assert last.loss_before == first.loss_before
    gained = first.loss_before - last.loss_after
    assert sum(callback.contributions.values()) == pytest.approx(gained, rel=ROUNDING)


def test_a_loss_that_is_not_finite_is_nobodys(caplog):
    class Overflows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))

        def forward(self, inputs: Tensor) -> Tensor:
            return (inputs @ self.weight).exp().unsqueeze(1)

    targets = torch.tensor([[4.0], [2.0]])
    held_out = Validation(Overflows(), torch.eye(2), targets, loss_fn=squared, device="cpu")
    callback = PathAttribution(held_out, "trapezoid")
    strategy = FedAvg(
        fraction_evaluate=0.0,
        callbacks=[callback],
        setup=Setup(trainable_keys=["weight"], device="cpu"),
    )
    with caplog.at_level(logging.ERROR):
        strategy.start(
            LocalGrid(Movers([[60.0, 60.0]] * 3), 3), model_arrays(Overflows()), num_rounds=1
        )
    (found,) = callback.rounds
    assert found.clients == ()
    assert math.isnan(found.loss_after)
    assert (found.decrease, found.remainder) == (0.0, 0.0)
    assert "round 1 cannot be attributed: no finite loss" in caplog.text


def test_a_step_that_is_taken_back_is_nobodys(caplog):
    class TakesBack(Callback):
        def on_start(self, strategy):
            self.strategy = strategy

        def on_model(self, server_round, model):
            if server_round == 1:
                model.take_back()

    held_out = validation()
    callback = PathAttribution(held_out, "trapezoid")
    strategy = fedavg(
        held_out,
        fraction_evaluate=0.0,
        callbacks=[callback, TakesBack()],
        setup=Setup(device="cpu"),
    )
    strategy.start(LocalGrid(Movers([[1.0, 1.0]] * 3), 3), model_arrays(point()), num_rounds=2)
    first, second = callback.rounds
    assert first.clients == ()
    assert first.decrease == 0.0
    assert second.loss_before == first.loss_before
    assert second.attributed == pytest.approx(second.decrease, rel=ROUNDING)
    assert "round 1: its step was taken back" in caplog.text


class OnlyOnce(Movers):
    """The last client sends its update in round 1 only; later it returns the model."""

    def __call__(self, message, context):
        if message.metadata.message_type != "query":
            first = message.content.config_records["config"]["server-round"] == 1
            last = int(context.node_config["partition-id"]) == len(self.steps) - 1
            self.now = self.steps
            if last and not first:
                return Movers([[0.0] * 2] * len(self.steps))(message, context)
        return super().__call__(message, context)


def test_momentum_pays_those_who_sent_it():
    movers = OnlyOnce([[0.0, 0.0], [0.0, 0.0], [3.0, 0.0]])
    callback = attributed(
        lambda v, **base: fedavg(v, stages=[FedAvgM(0.5, 0.5)], **base), movers, 4
    )
    for found in callback.rounds:
        # The step of round 1 goes on, halved: all of what it gains is the last client's.
        assert values(found)[:2] == [0.0, 0.0]
        assert values(found)[2] == pytest.approx(found.decrease, rel=100 * ROUNDING)
        assert found.decrease > 0
    # x goes to 0.5, 0.75, 0.875, 0.9375: contributions over all rounds are what was gained.
    gained = (16 - (4 - 0.9375) ** 2) / 2
    assert sum(callback.contributions.values()) == pytest.approx(gained, rel=ROUNDING)


def test_momentum_of_a_step_that_was_taken_back_is_nobodys():
    # Round 2 fails on every client: round 1's step goes, and the mean with it.
    movers = Failing([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], failing=range(3))
    callback = attributed(
        lambda v, **base: fedavg(v, stages=[FedAvgM(0.5, 0.5)], **base), movers, 4
    )
    assert [len(found.clients) for found in callback.rounds] == [3, 3, 3, 3]
    for found in callback.rounds:
        assert found.attributed == pytest.approx(found.decrease, rel=100 * ROUNDING)
