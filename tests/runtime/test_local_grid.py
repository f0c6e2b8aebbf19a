"""Nodes in this process: how many of their replies are in memory at a time."""

from __future__ import annotations

import weakref

import pytest
from flwr.app import Array, Context, Message, RecordDict
from torch import nn

from fedif_flower import FedAvg
from fedif_flower.intake.pace import Pace
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from tests.server.hostile import step_reply
from tests.strategies.lines import BASE

MEMBERS = 60
SIZE = 200_000  # Parameters: 0.8 MB a reply, 48 MB all of a round.


class Counted:
    """Members that add 1, and count whose earlier replies are still there when one trains."""

    def __init__(self) -> None:
        self.sent: list[weakref.ref[Array]] = []
        self.most = 0

    def __call__(self, message: Message, context: Context) -> Message:
        alive = sum(array() is not None for array in self.sent)
        self.most = max(self.most, alive)
        reply = step_reply(message, 1.0)
        self.sent.append(weakref.ref(reply.content["arrays"]["weight"]))
        return reply


class Polled(LocalGrid):
    """Nodes whose replies are fetched one by one, as behind a SuperLink."""

    reliable = False


@pytest.mark.parametrize("kind", [LocalGrid, Polled])
def test_a_reply_is_gone_once_it_is_taken_in(kind):
    members = Counted()
    strategy = FedAvg(**BASE)
    model = nn.Linear(SIZE, 1, bias=False)
    strategy.start(kind(members, MEMBERS), model_arrays(model), num_rounds=2)
    assert [len(played.clients) for played in strategy.history.rounds] == [MEMBERS, MEMBERS]
    assert len(members.sent) == 2 * MEMBERS
    assert members.most <= 1  # The one before, where it is still being freed.


def test_who_is_not_waited_for_any_more_is_not_asked():
    members = Counted()
    setup = Setup(device="cpu", pace=Pace(quorum=2))
    strategy = FedAvg(**BASE | {"setup": setup})
    strategy.start(LocalGrid(members, 5), model_arrays(nn.Linear(2, 1, bias=False)), num_rounds=3)
    assert [played.counts["late"] for played in strategy.history.rounds] == [3, 3, 3]
    assert len(members.sent) == 3 * 2


@pytest.mark.parametrize(("answer", "kind"), [(None, "NoneType"), (RecordDict(), "RecordDict")])
def test_a_client_that_returns_no_message_is_told_and_ends_nothing(answer, kind):
    """A forgotten return ended the run by an attribute that None has not."""

    def forgets(message: Message, context: Context) -> Message | None:
        if context.node_config["partition-id"] == 0:
            return answer
        return step_reply(message, 1.0)

    strategy = FedAvg(**BASE)
    strategy.start(LocalGrid(forgets, 3), model_arrays(nn.Linear(2, 1)), num_rounds=1)
    *others, first = strategy.history.rounds[0].clients
    assert [client.status for client in others] == ["accepted", "accepted"]
    assert f"the ClientApp returned {kind}; allowed: a Message, as Message(" in first.rejection
