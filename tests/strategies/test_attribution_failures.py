"""Path attribution where rounds fail, losses are not finite, and steps are taken back or go on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedif_flower import Validation
from fedif_flower.stages import FedAvgM
from fedif_flower.strategies.callbacks import Callback
from tests.strategies.hostile import round_of
from tests.strategies.lines import ROUNDING, Movers, attributed, fedavg, squared, values


class Failing(Movers):
    """Some clients raise an error in round 2."""

    def __init__(self, steps: list[list[float]], failing: range) -> None:
        super().__init__(steps)
        self.failing = failing

    def train(self, message, partition_id):
        if round_of(message) == 2 and partition_id in self.failing:
            raise RuntimeError("no data today")
        return super().train(message, partition_id)


def momentum(v, **base):
    return fedavg(v, stages=[FedAvgM(0.5, 0.5)], **base)


def test_a_failed_round_has_no_clients_and_no_decrease():
    movers = Failing([[1.0, 0.5], [0.5, 1.0], [0.0, 0.0]], failing=range(1))
    first, failed, last = attributed(fedavg, movers, 3, setup={"min_valid_replies": 3}).rounds
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
    movers = Movers([[60.0, 60.0]] * 3)
    (found,) = attributed(fedavg, movers, held_out=held_out, model=Overflows()).rounds
    assert found.clients == ()
    assert math.isnan(found.loss_after)
    assert (found.decrease, found.remainder) == (0.0, 0.0)
    assert "round 1 cannot be attributed: no finite loss" in caplog.text


def test_a_step_that_is_taken_back_is_nobodys(caplog):
    class TakesBack(Callback):
        def on_model(self, server_round, model):
            if server_round == 1:
                model.take_back()

    movers = Movers([[1.0, 1.0]] * 3)
    first, second = attributed(fedavg, movers, 2, beside=(TakesBack(),)).rounds
    assert (first.clients, first.decrease) == ((), 0.0)
    assert second.loss_before == first.loss_before
    assert second.attributed == pytest.approx(second.decrease, rel=ROUNDING)
    assert "round 1: its step was taken back" in caplog.text


class OnlyOnce(Movers):
    """The last client sends its update in round 1 only; later it returns the model."""

    def train(self, message, partition_id):
        sent_again = round_of(message) > 1 and partition_id == 2
        return super().train(message, 0 if sent_again else partition_id)


def test_momentum_pays_those_who_sent_it():
    callback = attributed(momentum, OnlyOnce([[0.0, 0.0], [0.0, 0.0], [3.0, 0.0]]), 4)
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
    callback = attributed(momentum, movers, 4)
    assert [len(found.clients) for found in callback.rounds] == [3, 3, 3, 3]
    for found in callback.rounds:
        assert found.attributed == pytest.approx(found.decrease, rel=100 * ROUNDING)
