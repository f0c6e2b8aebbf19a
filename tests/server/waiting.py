"""Grids whose nodes are not all there at first, and a clock that nobody waits for."""

from __future__ import annotations

from types import SimpleNamespace

from flwr.superlink.grid import InMemoryGrid

from fedif_flower.runtime.local_grid import LocalGrid


class LateGrid(LocalGrid, InMemoryGrid):
    """As in Flower's simulation: one more node at each look, and all before a message arrives."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.looks = -1
        self.questions = 0

    def get_node_ids(self):
        self.looks += 1
        ids = super().get_node_ids()
        return ids if self.questions else ids[: self.looks]

    def get_nodes(self):
        return [SimpleNamespace(node_id=i, registered_at=i) for i in self.node_ids]

    def push_messages(self, messages):
        messages = list(messages)
        self.questions += len(messages)
        return super().push_messages(messages)


class Clock:
    """In place of the module ``time``: it passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
