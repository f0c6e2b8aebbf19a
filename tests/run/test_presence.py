"""Who is told to be there, gone, or kept from being asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.run import presence
from fedif_flower.run.presence import RollCall
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies.callbacks import Question

NODES = {i: ClientNode(i - 1000, i) for i in (1000, 1001, 1002)}


class Roll:
    """Roll calls over nodes 1000 to 1002, of which `gone` are away."""

    def __init__(self, monkeypatch) -> None:
        self.grid = ScreenedGrid(LocalGrid(lambda message, _: message, 3))
        self.roll, self.now, self.online = RollCall(), 0.0, []
        monkeypatch.setattr(presence, "time", SimpleNamespace(time=self.tick))

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def call(self, *gone: int, paused=(), barred=()) -> list[tuple[int, str, float | None]]:
        online = [node for i, node in NODES.items() if i not in gone]
        # As a directory has it: another list only where others are there.
        self.online = self.online if online == self.online else online
        question = Question(
            *(1, (), (), self.online, set(paused)),
            candidates=[n for n in online if n.node_id not in (*paused, *barred)],
            grid=self.grid,
        )
        changes = self.roll.call(question, SimpleNamespace(known=list(NODES.values())))
        return [(c.node.node_id, c.presence, c.at) for c in changes]


@pytest.fixture
def roll(monkeypatch) -> Roll:
    return Roll(monkeypatch)


def test_only_news_is_told(roll):
    assert roll.call() == [(i, "there", 1.0) for i in (1000, 1001, 1002)]
    assert roll.call() == []
    # It was there at the second call.
    assert roll.call(1001) == [(1001, "offline", 2.0)]
    assert roll.call(1001) == []
    assert roll.call() == [(1001, "there", 5.0)]


def test_whose_registration_ended_is_no_member_any_more(roll, monkeypatch):
    roll.call()
    polling = SimpleNamespace(
        unregistered=lambda nodes: set(nodes) & {1002}, last_seen=lambda node_id: node_id + 0.5
    )
    monkeypatch.setattr(ScreenedGrid, "polling", polling)
    assert roll.call(1001, 1002) == [(1001, "offline", 1001.5), (1002, "revoked", 1002.5)]


def test_pauses_and_what_ends_them(roll):
    roll.call()
    assert roll.call(paused=[1000], barred=[1001]) == [
        (1000, "paused", 2.0),
        (1001, "not admitted", 2.0),
    ]
    assert roll.call(paused=[1000]) == [(1001, "there", 3.0)]
    assert roll.call(1000) == [(1000, "offline", 3.0)]
    assert roll.call() == [(1000, "there", 5.0)]


def test_that_a_simulated_member_is_there_is_not_told():
    simulated = [ClientNode(0, 5, is_simulated=True)]
    question = Question(1, simulated, (), simulated, (), candidates=simulated)
    assert RollCall().call(question, SimpleNamespace(known=simulated)) == []
