"""A pool of threads, each with one core and a replica of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Barrier
from typing import Generic, TypeVar

import torch

from fedif_flower.devices import fix_threads

Member = TypeVar("Member")
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Team(Generic[Member]):
    """Lets each member work in a thread whose operations use one core.

    Whole models in parallel keep all cores busy where the operations inside one model are too
    small to be split, and nobody waits for a core that another process has taken.

    Parameters
    ----------
    members : sequence
        What the threads work with, at least one; no two threads use one at a time.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = tuple(members)
        self._free: SimpleQueue[Member] = SimpleQueue()
        for member in members:
            self._free.put(member)
        self._executor = ThreadPoolExecutor(len(members), "validation-team")
        threads, begun = torch.get_num_threads(), Barrier(len(members) + 1)
        for _ in members:
            self._executor.submit(_use_one_core, begun)
        begun.wait()
        # It also sets what threads yet to come begin with.
        torch.set_num_threads(threads)

    @property
    def size(self) -> int:
        """How many work at once."""
        return len(self.members)

    def map(self, work: Callable[[Member, Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Return ``work(member, item)`` for each item, in their order."""

        def call(item: Item) -> Answer:
            member = self._free.get()
            try:
                return work(member, item)
            finally:
                self._free.put(member)

        return list(self._executor.map(call, items))


def _use_one_core(begun: Barrier) -> None:
    fix_threads(1)
    begun.wait()
