"""Flower's own simulation, made to hand over each reply as it comes."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedif_flower.messages.polling_grid import ForwardingGrid


class FlowerSimulation(ForwardingGrid):
    """Hands every call on to Flower's ``InMemoryGrid``, but looks for replies itself.

    Flower's own ``send_and_receive`` keeps all replies of a round in memory until the last has
    come.

    Parameters
    ----------
    grid : Grid
        Flower's ``InMemoryGrid``.
    """

    inner: Any
    reliable = True  # No client can make this grid wait or raise.

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        # Ids of messages that had no reply when their round closed, and have had none since.
        self._missing: set[str] = set()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and wait until each is answered or time is over."""
        return list(self.stream_replies(messages, timeout=timeout))

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages now; return an iterator over the replies as they come.

        The grid keeps no reply that it has handed over.

        Parameters
        ----------
        messages : iterable of Message
            Any number, to any nodes.
        timeout : float, optional
            Seconds; ``None``: wait for as long as it takes.
        """
        if self._missing:
            # Replies that came too late would stay in Flower's memory: fetching them frees it.
            pulled = self.pull_messages(self._missing)
            self._missing -= {reply.metadata.reply_to_message_id for reply in pulled}
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        return self._replies(set(self.push_messages(messages)), deadline)

    def _replies(self, waiting: set[str], deadline: float) -> Iterator[Message]:
        """Yield replies until all have come, time is over, or the caller takes no more."""
        try:
            while waiting and time.monotonic() < deadline:
                there = deque(self.pull_messages(waiting))
                waiting -= {reply.metadata.reply_to_message_id for reply in there}
                while there:
                    yield there.popleft()
                if waiting:
                    time.sleep(self.inner.pull_interval)
        finally:
            self._missing |= waiting
