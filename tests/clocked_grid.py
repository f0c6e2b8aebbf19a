"""A grid in this process whose nodes take their time, by a clock that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from flwr.app import Message

from fedif_flower.messages.polling_grid import Closing
from fedif_flower.runtime.local_grid import ClientCall, LocalGrid

Seconds = Callable[[int], float]
"""Takes a partition, returns the seconds that it trains for."""


class ClockedGrid(LocalGrid):
    """Nodes that answer one after the other, each as soon as its seconds of training are over.

    The clock is a number: it jumps to the next reply, and to the end of a round that closes
    before. What is measured by it does not depend on the machine.

    Parameters
    ----------
    client_app : callable
        The ClientApp.
    num_nodes : int
        How many nodes there are.
    seconds : callable
        How long each partition trains.
    """

    def __init__(self, client_app: ClientCall, num_nodes: int, seconds: Seconds) -> None:
        super().__init__(client_app, num_nodes)
        self.now = 0.0
        self._seconds = seconds
        self._due: dict[str, tuple[float, Message]] = {}

    def outstanding(self, awaited: Collection[int]) -> list[Message]:
        """Return the messages of earlier rounds to these nodes; forget the others."""
        self._due = {i: d for i, d in self._due.items() if d[1].metadata.dst_node_id in awaited}
        return [message for _, message in self._due.values()]

    def stream_replies(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        closing: Closing | None = None,
    ) -> Iterator[Message]:
        """Send messages now; return the replies in the order in which they are due.

        Messages outside rounds, which have no ``closing``, take no time.
        """
        if closing is None:
            return super().stream_replies(messages, timeout=timeout)
        sent = list(messages)
        fresh = self.push_messages(sent)
        for message_id, message in zip(fresh, sent, strict=True):
            partition = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
            self._due[message_id] = (self.now + self._seconds(int(partition)), message)
        closing.begin(timeout, lambda: self.now)
        return self._until_closed(set(fresh), closing)

    def _until_closed(self, fresh: set[str], closing: Closing) -> Iterator[Message]:
        while self._due and (fresh & self._due.keys() or closing.wants_late):
            message_id, (due, _) = min(self._due.items(), key=lambda item: item[1][0])
            if closing.deadline is not None and due > closing.deadline:
                self.now = max(self.now, closing.deadline)
                break
            self.now = max(self.now, due)
            del self._due[message_id]
            yield from self.pull_messages([message_id])
        if not closing.keeps:
            self._due = {}
