"""A model that nobody can go on from is taken back: one reply costs two rounds, not the run."""

from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message
from torch import nn

from fedif_flower import FedAvg, FedIF, Validation
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from tests.strategies.hostile import Clients, honest_parts, step_reply

HUGE = 5e14  # Let in by the screening; the product of two such layers leaves float32.


def line() -> nn.Module:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for layer in model:
        nn.init.zeros_(layer.weight)
    return model


def validation(model: nn.Module) -> Validation:
    inputs, targets = torch.ones(1, 1), torch.full((1, 1), 1e3)
    return Validation(model, inputs, targets, loss_fn=nn.functional.mse_loss, device="cpu")


def huge_in(*rounds: int) -> Clients:
    """All clients add 1; partition 1 adds far more in these rounds."""

    def reply(message: Message, context: Context) -> Message:
        hostile = context.node_config["partition-id"] == 1
        server_round = message.content.config_records["config"]["server-round"]
        return step_reply(message, HUGE if hostile and server_round in rounds else 1.0)

    return Clients({0: reply, 1: reply, 2: reply})


BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


def run(strategy, clients, rounds: int) -> ArrayRecord:
    arrays = model_arrays(line())
    return strategy.start(LocalGrid(clients, 3), arrays, num_rounds=rounds).arrays


def test_fedif_goes_on_from_the_last_model_that_worked():
    # The gradient at 0 is 0, so that the first round's weights are equal, the hostile client's too.
    # Without bounds: with them such a step is not taken in the first place.
    strategy = FedIF(validation(line()), stages=(), **BASE)
    arrays = run(strategy, huge_in(1), rounds=5)
    failed = [report.failed for report in strategy.history.rounds]
    assert failed == [False, True, False, False, False]
    # Round 1 is undone by round 2; rounds 3, 4 and 5 add 1 each.
    assert arrays["0.weight"].numpy().item() == pytest.approx(3.0)


def test_nothing_but_nonsense_blames_the_model_that_was_sent():
    def overflowing(message: Message, context: Context) -> Message:
        """A client whose training overflows where the model it received is huge."""
        arrays, _ = honest_parts(message, 0.0)
        if max(abs(array.numpy()).max() for array in arrays.values()) > 1e6:
            return step_reply(message, float("nan"))
        return huge_in(1).special[0](message, context)

    strategy = FedAvg(**BASE)
    arrays = run(strategy, Clients(dict.fromkeys(range(3), overflowing)), rounds=5)
    assert arrays["1.weight"].numpy().item() == pytest.approx(3.0)


class SilentInRound(LocalGrid):
    """Three nodes that do not answer in one round."""

    def __init__(self, client_app, silent_round: int) -> None:
        super().__init__(client_app, 3)
        self._left = silent_round

    def pull_messages(self, message_ids):
        message_ids = list(message_ids)
        self._left -= bool(message_ids)  # Nobody is asked to evaluate.
        return [] if self._left == 0 else super().pull_messages(message_ids)


def one_more(message: Message, context: Context) -> Message:
    return step_reply(message, 1.0)


def test_silence_does_not_blame_the_model():
    strategy = FedAvg(fraction_evaluate=0.0, setup=Setup(device="cpu", max_paused_turns=0))
    grid = SilentInRound(Clients(dict.fromkeys(range(3), one_more)), silent_round=2)
    arrays = strategy.start(grid, model_arrays(line()), num_rounds=3).arrays
    assert arrays["0.weight"].numpy().item() == pytest.approx(2.0)


def unable_beyond(limit: float):
    """A client whose app raises where a weight of the model it received is beyond a limit."""

    def reply(message: Message, context: Context) -> Message:
        arrays, _ = honest_parts(message, 0.0)
        if max(abs(array.numpy()).max() for array in arrays.values()) > limit:
            raise IndexError("this model is none that I can train")
        return huge_in(1).special[0](message, context)

    return reply


def test_clients_that_all_fail_on_the_model_just_made_blame_it():
    strategy = FedAvg(**BASE)
    arrays = run(strategy, Clients(dict.fromkeys(range(3), unable_beyond(1e6))), rounds=4)
    reports = strategy.history.rounds
    assert [report.failed for report in reports] == [False, True, False, False]
    assert reports[1].reason == "most clients fail on this model"
    assert arrays["1.weight"].numpy().item() == pytest.approx(2.0)


def test_clients_that_always_fail_do_not_blame_the_model():
    def failing(message: Message, context: Context) -> Message:
        raise OSError("no data here")

    strategy = FedAvg(fraction_evaluate=0.0, setup=Setup(device="cpu", max_paused_turns=0))
    arrays = run(strategy, Clients({0: failing, 1: one_more, 2: one_more}), rounds=3)
    assert arrays["0.weight"].numpy().item() == pytest.approx(3.0)


def test_an_error_out_of_the_users_loss_fails_the_round_and_not_the_run():
    """The model of round 1 is beyond what the loss can take: it is taken back in round 2."""

    def loss(outputs, targets):
        if outputs.abs().max() > 1e6:
            raise IndexError("a loss of the user's own")
        return nn.functional.mse_loss(outputs, targets)

    held_out = Validation(
        line(), torch.ones(1, 1), torch.full((1, 1), 1e3), loss_fn=loss, device="cpu"
    )
    strategy = FedIF(held_out, stages=(), **BASE)
    arrays = run(strategy, huge_in(1), rounds=4)
    reports = strategy.history.rounds
    assert [report.failed for report in reports] == [False, True, False, False]
    assert "a loss of the user's own" in reports[1].reason
    assert [report.reason for report in reports if not report.failed] == [""] * 3
    assert arrays["0.weight"].numpy().item() == pytest.approx(2.0)
