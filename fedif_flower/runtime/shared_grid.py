"""One Flower ``Grid`` for several federations at once; it can be stopped from another thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Lock

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedif_flower.errors import FedIFError
from fedif_flower.messages.forwarding_grid import ForwardingGrid

_POLL_SECONDS = 0.05


class GridInterrupted(FedIFError):  # noqa: N818
    """The grid was stopped; complete runs stay, the others can be resumed."""

    exit_code = 130  # as a shell reports Ctrl-C


class SharedGrid(ForwardingGrid):
    """Passes every call on to another grid, from any thread, until it is stopped.

    Parameters
    ----------
    grid : Grid
        The way to the clients.
    stopped : callable
        Returns whether the grid was stopped; from then on it does not wait.
    """

    reliable = True  # It is used in simulations alone, whose grids are.

    def __init__(self, grid: Grid, stopped: Callable[[], bool]) -> None:
        super().__init__(grid)
        self._stopped = stopped
        self._lock = Lock()

    def check(self) -> None:
        """Raise GridInterrupted if the grid was stopped."""
        if self._stopped():
            raise GridInterrupted("stopped")

    def set_run(self, run: Run) -> None:
        """Do nothing: the run is set where the grid comes from."""

    def get_node_ids(self) -> Iterable[int]:
        """Return every node's id."""
        self.check()
        return self.inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages and return their ids."""
        with self._lock:
            return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        with self._lock:
            return self.inner.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages, and wait until all are answered, time is over or the grid stopped."""
        waiting = set(self.push_messages(messages))
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while True:
            self.check()
            received = list(self.pull_messages(waiting))
            replies.extend(received)
            waiting -= {reply.metadata.reply_to_message_id for reply in received}
            if not waiting or (deadline is not None and time.monotonic() >= deadline):
                return replies
            time.sleep(_POLL_SECONDS)
