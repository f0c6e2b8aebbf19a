"""The way to the clients for strategies: a reply counts for who was asked, once, within bounds.

Only Flower's public names are used here, so that any ``Grid`` can be wrapped: Flower's own in a
simulation or between hosts, and those of this package.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flwr.app import DEFAULT_TTL, Array, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedif_flower.messages.flower_simulation import FlowerSimulation
from fedif_flower.messages.instructions import round_of
from fedif_flower.messages.polling_grid import (
    MESSAGE_UNAVAILABLE,
    Closing,
    ForwardingGrid,
    PollingGrid,
    stream_replies,
)

logger = logging.getLogger(__name__)

# A reply weighs what the message weighs, in float64 if its sender likes, and some metrics.
LARGEST_RATIO = 2
SPARE_BYTES = 256 * 1024
SPARE_VALUES = 32 * 1024
_LETTERS_PER_VALUE = 64
# Of a round, for all but waiting for replies: those that were sent in its last second are fetched,
# nodes are waited for, and the model is made and evaluated.
_SPARE_SECONDS = 3600.0
_LONGEST_LIFE = 10 * 365 * 86400.0  # Seconds; Flower makes a date of when a message expires.


class ScreenedGrid(ForwardingGrid):
    """Hands calls on to another grid and checks what replies say of themselves.

    Messages get a random ``group_id``, which makes the ids that Flower computes from them
    impossible to guess. A reply counts for the node that its message went to. A reply that claims
    another sender, or that is far larger than its message, becomes an error of the node that was
    asked. A reply in the name of a node whose message it does not answer is dropped.

    Parameters
    ----------
    grid : Grid
        Any grid. Where nodes are simulated, it waits for the replies itself; elsewhere a
        :class:`~fedif_flower.messages.polling_grid.PollingGrid` does.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._transport: Any = _transport_over(grid)
        self._closing: Closing | None = None

    @property
    def keeps_late(self) -> bool:
        """Whether a reply that is missing when a round closes can come later."""
        return hasattr(self._transport, "arrivals")

    @property
    def polling(self) -> PollingGrid | None:
        """What waits for the replies of real nodes, and so knows who is there."""
        return self._transport if isinstance(self._transport, PollingGrid) else None

    def close_by(self, closing: Closing) -> None:
        """Let ``closing`` say until when the replies to the next messages are waited for."""
        self._closing = closing

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids, which nobody can guess."""
        return self.inner.push_messages(unguessable(messages))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages now; return an iterator over at most one reply to each, as they come.

        Parameters
        ----------
        messages : iterable of Message
            Any number, to any nodes.
        timeout : float, optional
            Seconds; ``None``: wait for as long as it takes.
        """
        closing = self._closing
        self._closing = None  # It is for these messages alone.
        rounds = 1
        if closing is not None:
            rounds = closing.rounds
        sent = lasting(unguessable(messages), timeout, rounds)
        late: list[Message] = []
        if closing is not None and self.keeps_late:
            late = self._transport.outstanding(closing.awaited)
            replies = self._transport.arrivals(sent, timeout, closing)
        else:
            replies = stream_replies(self._transport, sent, timeout)
            if closing is not None:
                replies = _until_closed(replies, timeout, closing)
        return believable(replies, [*sent, *late])


def _until_closed(
    replies: Iterable[Message], timeout: float | None, closing: Closing
) -> Iterator[Message]:
    """Return the replies that come before a round closes; its later ones are lost."""
    closing.begin(timeout)
    for reply in replies:
        yield reply
        del reply  # It need not stay in memory until the next is there.
        if closing.has_quorum and closing.is_over():
            return


def screened(grid: Grid) -> Grid:
    """Return the grid, wrapped unless it is already."""
    return grid if isinstance(grid, ScreenedGrid) else ScreenedGrid(grid)


def is_reliable(grid: Grid) -> bool:
    """Return whether no client can make the grid wait or raise: nothing is uploaded to it."""
    says_so = getattr(grid, "reliable", False)  # This package's grids do.
    return _is_flowers(grid) or isinstance(grid, PollingGrid) or says_so


def _is_flowers(grid: Grid) -> bool:
    """Return whether it is Flower's class for simulations, which has no public home."""
    return type(grid).__name__ == "InMemoryGrid"


def _transport_over(grid: Grid) -> Grid:
    """Return what waits for the replies of a grid's nodes."""
    if _is_flowers(grid):
        return FlowerSimulation(grid)
    return grid if is_reliable(grid) else PollingGrid(grid)


def weight(content: RecordDict) -> tuple[int, int]:
    """Return how many bytes of arrays a message holds, and how many values besides."""
    size = values = 0
    for record in content.values():
        for name, value in record.items():
            values += 1 + len(str(name)) // _LETTERS_PER_VALUE
            if isinstance(value, Array):
                size += len(value.data)
            elif isinstance(value, list | str | bytes):
                values += len(value)
    return size, values


def unguessable(messages: Iterable[Message]) -> list[Message]:
    """Return messages with ids that nobody can guess, once they are sent."""
    sent = list(messages)
    for message in sent:
        # A member's log calls it the round.
        number = round_of(message)
        group_id = secrets.token_hex(16)
        if number is not None:
            group_id = f"{number}, {group_id}"
        message.metadata.group_id = group_id
    return sent


def lasting(messages: list[Message], timeout: float | None, rounds: int) -> list[Message]:
    """Return messages that Flower does not drop, with their replies, while these are waited for.

    Its own default is twelve hours. A message that was given another time keeps that.

    Parameters
    ----------
    messages : list of Message
        Not sent yet.
    timeout : float, optional
        Seconds that a round waits; ``None``: for as long as it takes.
    rounds : int
        In how many rounds replies count.
    """
    seconds = _LONGEST_LIFE
    if timeout is not None:
        seconds = min(rounds * (timeout + _SPARE_SECONDS), _LONGEST_LIFE)
    for message in messages:
        if message.metadata.ttl == DEFAULT_TTL:
            message.metadata.ttl = max(seconds, DEFAULT_TTL)
    return messages


def believable(replies: Iterable[Message], sent: Sequence[Message]) -> Iterator[Message]:
    """Return replies to messages that were sent, as :class:`ScreenedGrid` does."""
    sent_by_id: dict[str, Message] = {}
    nodes = {message.metadata.dst_node_id for message in sent}
    answered: set[str] = set()
    for reply in replies:
        message_id = reply.metadata.reply_to_message_id
        sender = reply.metadata.src_node_id
        if message_id not in sent_by_id:  # A grid gives messages their ids as it sends them.
            sent_by_id = {message.metadata.message_id: message for message in sent}
        message = sent_by_id.get(message_id)
        if message is not None and message_id not in answered:
            answered.add(message_id)
            yield _checked(reply, message)
        elif sender in nodes and (message is None or sender != message.metadata.dst_node_id):
            logger.warning("a reply in the name of node %d answers none of its messages", sender)
        else:
            yield reply  # A stranger's, or a second one of the same node: known as such.
        del reply  # It need not stay in memory until the next is there.


def _checked(reply: Message, message: Message) -> Message:
    """Return the reply to a message, or an error of the node that was asked in its place."""
    sender = reply.metadata.src_node_id
    node_id = message.metadata.dst_node_id
    if reply.has_error():
        return Message(reply.error, reply_to=message)
    largest, most = weight(message.content)
    size, values = weight(reply.content)
    if sender != node_id:
        reason = f"the reply says that it comes from node {sender}"
    elif size > LARGEST_RATIO * largest + SPARE_BYTES or values > most + SPARE_VALUES:
        reason = (
            f"the reply holds {size} bytes of arrays and {values} other values; "
            f"the message {largest} and {most}"
        )
    else:
        return reply
    return Message(Error(MESSAGE_UNAVAILABLE, reason), reply_to=message)
