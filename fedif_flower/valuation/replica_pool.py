"""A pool of threads, each with one core and a replica of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Barrier
from typing import Generic, TypeVar

import torch

from fedif_flower.devices import fix_threads

Replica = TypeVar("Replica")
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class ReplicaPool(Generic[Replica]):
    """Threads that each use one core and work with a replica of their own.

    Whole models in parallel keep all cores busy where the operations inside one model are too
    small to be split, and no thread waits for a core that another process has taken.

    Parameters
    ----------
    replicas : sequence
        What the threads work with, at least one; no two threads use one at a time.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = tuple(replicas)
        self._free: SimpleQueue[Replica] = SimpleQueue()
        for replica in replicas:
            self._free.put(replica)
        self._executor = ThreadPoolExecutor(len(replicas), "validation-replica")
        threads, begun = torch.get_num_threads(), Barrier(len(replicas) + 1)
        for _ in replicas:
            self._executor.submit(_use_one_core, begun)
        begun.wait()
        # The call in a thread also set what later threads begin with.
        torch.set_num_threads(threads)

    @property
    def size(self) -> int:
        """How many replicas work at once."""
        return len(self.replicas)

    def map(self, work: Callable[[Replica, Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Return ``work(replica, item)`` for each item, in their order."""

        def call(item: Item) -> Answer:
            replica = self._free.get()
            try:
                return work(replica, item)
            finally:
                self._free.put(replica)

        return list(self._executor.map(call, items))


def _use_one_core(begun: Barrier) -> None:
    fix_threads(1)
    begun.wait()
