"""A Flower ``Grid`` for real hosts: it polls often and names each sender by the message it answers.

Flower's own grid looks for replies every three seconds, and takes all of a round at once: one that
cannot be read ends the run, and the sender's name is read from the reply itself, where the sender
wrote it. This one looks five times a second and fetches each reply by the message it answers, so
that a bad one stands alone and its sender is the node that the message went to. And it sees
that a node was away and is back before anyone noticed: what it was doing is lost, and waiting for
that would take the whole timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import NoReturn

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run, RunNotRunningException

logger = logging.getLogger(__name__)

# What says that the SuperLink is gone or the run over; anything else is a reply's own fault.
_CONNECTION_ERRORS = (httpx.HTTPError, OSError, RunNotRunningException)


class PollingGrid(Grid):
    """Hands every call on to another grid, but waits for replies in its own way.

    Parameters
    ----------
    grid : Grid
        The way to the clients.
    poll_seconds : float
        Pause after looking for a reply that is not there yet, > 0.
    restart_seconds : float
        How often to look whether a node that has not answered was started again, > 0.
    """

    def __init__(self, grid: Grid, poll_seconds: float = 0.2, restart_seconds: float = 5.0) -> None:
        self._grid = grid
        self._poll_seconds = poll_seconds
        self._restart_seconds = restart_seconds

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run that the grid belongs to."""
        return self._grid.run

    def create_message(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse: it is deprecated in Flower."""
        raise RuntimeError("construct a flwr.app.Message instead")

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are online."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes that are online."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and wait until each is answered or time is over.

        Parameters
        ----------
        messages : iterable of Message
            At most one to each node, if replies are to be told apart by their senders.
        timeout : float, optional
            Seconds; ``None``: wait for as long as it takes.

        Returns
        -------
        list of Message
            At most one reply to each message, from the node that the message went to; an error
            where the reply could not be read or bore another sender's name, and where the node was
            started again before it answered.
        """
        sent = list(messages)
        ids = self.push_messages(sent)
        # An id is missing where Flower could not pass the message on.
        waiting = {i: message for i, message in zip(ids, sent, strict=False) if i is not None}
        # Only now: a node that was started before this has the message still to come.
        activations = self._activations() if waiting else {}
        looked = time.monotonic()
        deadline = None if timeout is None else looked + timeout
        replies: list[Message] = []
        while waiting and (deadline is None or time.monotonic() < deadline):
            if time.monotonic() - looked >= self._restart_seconds:
                replies += self._lost(waiting, activations)
                looked = time.monotonic()
                continue
            message_id, message = next(iter(waiting.items()))
            del waiting[message_id]
            if (reply := self._reply_to(message_id, message)) is not None:
                replies.append(reply)
            else:
                # To the end of the queue. Looking costs the SuperLink some 10 ms: only what is
                # not there is paused for, so that the last reply is found after one pause at most.
                waiting[message_id] = message
                time.sleep(self._poll_seconds)
        return replies

    def _activations(self) -> dict[int, str]:
        """Return when each node that is online came online."""
        return {node.node_id: node.last_activated_at for node in self.get_nodes()}

    def _lost(self, waiting: dict[str, Message], before: dict[int, str]) -> list[Message]:
        """Take the messages to nodes that were started again out of those waiting."""
        now = self._activations()
        replies: list[Message] = []
        for message_id, message in list(waiting.items()):
            node_id = message.metadata.dst_node_id
            if node_id not in now or now[node_id] == before.get(node_id, now[node_id]):
                continue
            del waiting[message_id]
            reason = "the node was started again before it answered"
            replies.append(
                self._reply_to(message_id, message)
                or _refusal(message, reason, ErrorCode.NODE_UNAVAILABLE)
            )
        return replies

    def _reply_to(self, message_id: str, message: Message) -> Message | None:
        try:
            replies = list(self.pull_messages([message_id]))
        except _CONNECTION_ERRORS:
            raise
        except Exception as error:  # nothing that a client sends may stop the server
            return _refusal(message, f"the reply cannot be read: {error!r}"[:500])
        if not replies:
            return None
        reply = replies[0]
        if reply.has_error():
            return Message(reply.error, reply_to=message)
        claimed = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
        if claimed != (message.metadata.dst_node_id, message_id):
            return _refusal(message, f"the reply says that it comes from node {claimed[0]}")
        return reply


def _refusal(message: Message, reason: str, code: int = ErrorCode.MESSAGE_UNAVAILABLE) -> Message:
    logger.warning("node %d: %s", message.metadata.dst_node_id, reason)
    return Message(Error(code=code, reason=reason), reply_to=message)
