"""Who is told to be there, gone, or kept from being asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import presence
from fedif_flower.strategies.nodes import NodeDirectory
from fedif_flower.strategies.presence import RollCall
from tests.strategies.hostile import Clients


class Roll:
    """Roll calls over nodes 1000 to 1002, of which `gone` are away."""

    def __init__(self, monkeypatch) -> None:
        self.inner = LocalGrid(Clients(), 3)
        self.grid = ScreenedGrid(self.inner)
        self.directory = NodeDirectory(None, 0.0)
        self.roll = RollCall()
        self.now = 0.0
        monkeypatch.setattr(presence, "time", SimpleNamespace(time=self.tick))

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def call(self, *gone: int, paused=(), barred=()) -> list[tuple[int, str, float | None]]:
        there = {i: self.inner.contexts[i] for i in (1000, 1001, 1002) if i not in gone}
        self.inner.get_node_ids = lambda: list(there)
        online = self.directory.online(self.grid, 1)
        known = {node.node_id: node for node in self.directory.known}
        changes = self.roll.call(
            *(self.grid, self.directory, online),
            paused=[known[i] for i in paused],
            barred=[known[i] for i in barred],
        )
        return [(c.node.node_id, c.presence, c.at) for c in changes]


@pytest.fixture
def roll(monkeypatch) -> Roll:
    return Roll(monkeypatch)


@pytest.fixture(autouse=True)
def _named(monkeypatch) -> None:
    monkeypatch.setattr(LocalGrid, "get_nodes", lambda _: [], raising=False)


def test_only_news_is_told(roll):
    assert roll.call() == [(i, "there", 1.0) for i in (1000, 1001, 1002)]
    assert roll.call() == []
    # It was there at the second call.
    assert roll.call(1001) == [(1001, "offline", 2.0)]
    assert roll.call(1001) == []
    assert roll.call() == [(1001, "there", 5.0)]


def test_whose_registration_ended_is_no_member_any_more(roll, monkeypatch):
    roll.call()
    monkeypatch.setattr(ScreenedGrid, "unregistered", lambda _, nodes: set(nodes) & {1002})
    monkeypatch.setattr(ScreenedGrid, "last_seen", lambda _, node_id: node_id + 0.5)
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


def test_that_a_simulated_member_or_one_of_very_many_is_there_is_not_told(roll, monkeypatch):
    monkeypatch.setattr(presence, "MOST_NEW", 2)
    assert roll.call() == []
    assert roll.call(1001) == [(1001, "offline", 1.0)]
    assert roll.call() == [(1001, "there", 3.0)]
    simulated = [ClientNode(0, 5, is_simulated=True)]
    assert RollCall().call(roll.grid, NodeDirectory(None, 0.0), simulated) == ()
