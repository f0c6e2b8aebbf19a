"""A model that nobody can go on from is taken back: one reply costs two rounds, not the run."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Context, Message
from torch import nn

from fedif_flower import FedAvg, FedIF, Validation
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import FedAvgM
from fedif_flower.strategies import ScreenedStrategy, Setup
from tests.strategies.hostile import (
    Clients,
    alike,
    one_more,
    round_of,
    step_reply,
)
from tests.strategies.lines import play, point

HUGE = 5e14  # Let in by the screening; the product of two such layers leaves float32.
BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu", max_paused_turns=0)}


def line() -> nn.Module:
    return nn.Sequential(point(1), point(1))


def validation(loss_fn=nn.functional.mse_loss) -> Validation:
    inputs, targets = torch.ones(1, 1), torch.full((1, 1), 1e3)
    return Validation(line(), inputs, targets, loss_fn=loss_fn, device="cpu")


def huge_in(*rounds: int):
    """A client that adds 1; partition 1 adds far more in these rounds."""

    def reply(message: Message, context: Context) -> Message:
        hostile = context.node_config["partition-id"] == 1
        return step_reply(message, HUGE if hostile and round_of(message) in rounds else 1.0)

    return reply


def run(strategy: ScreenedStrategy, *clients, rounds: int = 4) -> tuple[float, list[bool]]:
    """Return the first weight, and which rounds failed."""
    three = Clients(dict(enumerate(clients * (3 // len(clients)))))
    params, reports = play(strategy, line(), three, rounds)
    return params[0].item(), [report.failed for report in reports]


def where_huge(fail):
    """The same, of a huge step in round 1; on a model that is huge by then each client fails."""

    def reply(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"].values()
        is_huge = max(abs(array.numpy()).max() for array in arrays) > 1e6
        return fail(message) if is_huge else huge_in(1)(message, context)

    return reply


def own_loss(outputs, targets):
    if outputs.abs().max() > 1e6:
        raise IndexError("a loss of the user's own")
    return nn.functional.mse_loss(outputs, targets)


@pytest.mark.parametrize(
    ("strategy", "client", "reason"),
    [
        # The gradient at 0 is 0, so that round 1's weights are equal, the hostile client's too.
        # Without bounds: with them such a step is not taken in the first place.
        (FedIF(validation(), stages=(), **BASE), huge_in(1), "finite"),
        (FedIF(validation(own_loss), stages=(), **BASE), huge_in(1), "a loss of the user's own"),
        (FedAvg(**BASE), where_huge(lambda _: 1 / 0), "most clients fail on this model"),
        (FedAvg(**BASE), where_huge(lambda m: step_reply(m, torch.nan)), "0 valid replies"),
    ],
)
def test_a_run_goes_on_from_the_last_model_that_worked(strategy, client, reason):
    # Round 1 is undone by round 2; rounds 3 and 4 add 1 each.
    assert run(strategy, client) == (pytest.approx(2.0), [False, True, False, False])
    assert reason in strategy.history.rounds[1].reason


class SilentInRound(LocalGrid):
    """Three nodes that do not answer in one round."""

    def __init__(self, client_app, silent_round: int) -> None:
        super().__init__(client_app, 3)
        self._left = silent_round

    def pull_messages(self, message_ids):
        message_ids = list(message_ids)
        self._left -= bool(message_ids)  # Nobody is asked to evaluate.
        return [] if self._left == 0 else super().pull_messages(message_ids)


# With momentum 1/2 in round 1, nothing in round 2, 1/4 + 1/2 in round 3.
@pytest.mark.parametrize(("stages", "led_to"), [([], 2.0), ([FedAvgM(0.5, 0.5)], 1.25)])
def test_silence_does_not_blame_the_model_and_makes_no_step(stages, led_to):
    strategy = FedAvg(stages=stages, **BASE)
    grid = SilentInRound(alike(one_more), silent_round=2)
    arrays = strategy.start(grid, model_arrays(line()), num_rounds=3).arrays
    assert arrays["0.weight"].numpy().item() == pytest.approx(led_to)


def test_clients_that_always_fail_do_not_blame_the_model():
    def failing(message: Message, context: Context) -> Message:
        raise OSError("no data here")

    found = run(FedAvg(**BASE), failing, one_more, one_more, rounds=3)
    assert found == (pytest.approx(3.0), [False] * 3)


def test_a_model_that_is_taken_back_takes_its_mean_with_it():
    strategy = FedIF(validation(), stages=[FedAvgM(0.5, 0.5)], **BASE)
    # Round 2 is undone by round 3; rounds 1 and 4 move by 1/2 and 1/4 + 1/2.
    expected = pytest.approx(1.25), [False, False, True, False]
    assert run(strategy, huge_in(2)) == expected
