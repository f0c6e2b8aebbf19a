from __future__ import annotations

from flwr.app import Message, RecordDict

from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies.nodes import (
    MOST_QUESTIONS,
    UNKNOWN_PARTITION,
    ClientNode,
    NodeDirectory,
    identify_by_query,
)
from tests.strategies.hostile import Clients


class Slow(Clients):
    """Clients that say who they are only when they are asked for the n-th time."""

    def __init__(self, answers_at: dict[int, int]) -> None:
        super().__init__()
        self.answers_at = answers_at
        self.asked: list[int] = []

    def __call__(self, message: Message, context) -> Message:
        partition_id = context.node_config["partition-id"]
        self.asked.append(partition_id)
        if self.asked.count(partition_id) < self.answers_at.get(partition_id, 1):
            return Message(RecordDict(), reply_to=message)
        return super().__call__(message, context)


def test_who_did_not_say_is_asked_again():
    clients = Slow({1: 2})
    grid = LocalGrid(clients, 3)
    directory = NodeDirectory(identify_by_query, timeout=1.0)
    first, second, third = (directory.online(grid, 3) for _ in range(3))
    assert [node.partition_id for node in first] == [UNKNOWN_PARTITION, 0, 2]
    assert [node.partition_id for node in second] == [0, 1, 2]
    assert third == second
    assert [clients.asked.count(p) for p in range(3)] == [1, 2, 1]


def test_who_never_says_is_asked_no_more_than_three_times():
    clients = Slow({0: 100})
    grid = LocalGrid(clients, 2)
    directory = NodeDirectory(identify_by_query, timeout=1.0)
    for _ in range(MOST_QUESTIONS + 2):
        nodes = directory.online(grid, 2)
    assert nodes == [ClientNode(UNKNOWN_PARTITION, 1000), ClientNode(1, 1001)]
    assert clients.asked.count(0) == MOST_QUESTIONS == 3
    assert clients.asked.count(1) == 1


def test_without_names_a_node_is_its_id_and_nobody_is_asked():
    clients = Slow({})
    nodes = NodeDirectory(None, timeout=1.0).online(LocalGrid(clients, 2), 2)
    assert nodes == [ClientNode(1000, 1000), ClientNode(1001, 1001)]
    assert clients.asked == []
