"""The grid that strategies use: a node gets one reply per message, from itself, of bounded size.

It uses only Flower's public names, so that it can wrap any ``Grid``: Flower's own grids, in a
simulation or between hosts, and the grids of this package.
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

# A reply may hold as many bytes of arrays as its message, twice if it turned float32 into float64,
# and some more for metrics.
LARGEST_RATIO = 2
SPARE_BYTES = 256 * 1024
SPARE_VALUES = 32 * 1024
_LETTERS_PER_VALUE = 64  # A name of so many letters counts as one more value.
# Time that a round may need beside waiting for replies: to fetch replies sent in its last second,
# to wait for nodes, and to make and evaluate the model.
_SPARE_SECONDS = 3600.0
# Ten years, in seconds. Flower turns a message's expiry into a date, which must not overflow.
_LONGEST_LIFE = 10 * 365 * 86400.0


class ScreenedGrid(ForwardingGrid):
    """Hands calls on to another grid, and checks the sender and the size of every reply.

    Messages get a random ``group_id``. Flower computes message ids from it, so nobody can guess
    the ids. A reply counts for the node that its message was sent to. A reply that names another
    sender, or that is far larger than its message, becomes an error of the node that was asked. A
    reply in the name of a node that was asked, but to none of its messages, is dropped.

    Parameters
    ----------
    grid : Grid
        Any grid. A grid that no client can delay waits for the replies itself. Around Flower's
        grid for simulations a
        :class:`~fedif_flower.messages.flower_simulation.FlowerSimulation` does, and around any
        other a :class:`~fedif_flower.messages.polling_grid.PollingGrid`.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._transport: Any = _transport_over(grid)
        self._closing: Closing | None = None

    @property
    def keeps_late(self) -> bool:
        """Whether a reply that is missing when a round closes can still come in a later round."""
        return hasattr(self._transport, "outstanding")

    @property
    def polling(self) -> PollingGrid | None:
        """The grid that waits for real nodes and knows who is online; ``None`` in a simulation."""
        return self._transport if isinstance(self._transport, PollingGrid) else None

    def close_by(self, closing: Closing) -> None:
        """Let ``closing`` decide how long the next call of :meth:`send_and_receive` waits."""
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
        self._closing = None  # It applies to this call alone.
        rounds = 1
        if closing is not None:
            rounds = closing.rounds
        sent = with_lifetime(unguessable(messages), timeout, rounds)
        late: list[Message] = []
        if closing is not None and self.keeps_late:
            late = self._transport.outstanding(closing.awaited)
            replies = self._transport.stream_replies(sent, timeout=timeout, closing=closing)
        else:
            replies = stream_replies(self._transport, sent, timeout)
            if closing is not None:
                replies = _until_closed(replies, timeout, closing)
        return believable(replies, [*sent, *late])


def _until_closed(
    replies: Iterable[Message], timeout: float | None, closing: Closing
) -> Iterator[Message]:
    """Yield the replies that come before a round closes; later ones are lost."""
    closing.begin(timeout)
    for reply in replies:
        yield reply
        del reply  # It need not stay in memory until the next reply comes.
        if closing.has_quorum and closing.is_over():
            return


def screened(grid: Grid) -> Grid:
    """Return the grid as a :class:`ScreenedGrid`, wrapping it unless it is one."""
    return grid if isinstance(grid, ScreenedGrid) else ScreenedGrid(grid)


def is_reliable(grid: Grid) -> bool:
    """Return whether no client can make the grid wait or raise an error."""
    says_so = getattr(grid, "reliable", False)  # An attribute of this package's own grids.
    return _is_flowers(grid) or isinstance(grid, PollingGrid) or says_so


def _is_flowers(grid: Grid) -> bool:
    """Return whether a grid is Flower's own for simulations, which Flower does not export."""
    return type(grid).__name__ == "InMemoryGrid"


def _transport_over(grid: Grid) -> Grid:
    """Return the grid that waits for replies: ``grid`` itself, or one around it."""
    if _is_flowers(grid):
        return FlowerSimulation(grid)
    return grid if is_reliable(grid) else PollingGrid(grid)


def weight(content: RecordDict) -> tuple[int, int]:
    """Return how many bytes of arrays a message holds, and how many other values.

    Each entry counts as one value, and its long name as more. Each element of a list and each
    character of a text counts as one.
    """
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
    """Give messages a random group id, so that nobody can guess the ids that they get when sent."""
    sent = list(messages)
    for message in sent:
        # The round number comes first: a member's log shows the group id as the round.
        number = round_of(message)
        group_id = secrets.token_hex(16)
        if number is not None:
            group_id = f"{number}, {group_id}"
        message.metadata.group_id = group_id
    return sent


def with_lifetime(messages: list[Message], timeout: float | None, rounds: int) -> list[Message]:
    """Set how long messages live, so that Flower keeps them while their replies still count.

    Flower drops a message and its reply after the message's lifetime, twelve hours by default. A
    message whose lifetime is not the default keeps it.

    Parameters
    ----------
    messages : list of Message
        The messages, not sent yet; changed in place and returned.
    timeout : float, optional
        Seconds that a round waits; ``None``: for as long as it takes.
    rounds : int
        In how many rounds replies to these messages count.
    """
    seconds = _LONGEST_LIFE
    if timeout is not None:
        seconds = min(rounds * (timeout + _SPARE_SECONDS), _LONGEST_LIFE)
    for message in messages:
        if message.metadata.ttl == DEFAULT_TTL:
            message.metadata.ttl = max(seconds, DEFAULT_TTL)
    return messages


def believable(replies: Iterable[Message], sent: Sequence[Message]) -> Iterator[Message]:
    """Yield the replies that :class:`ScreenedGrid` lets pass, in the order in which they come.

    Parameters
    ----------
    replies : iterable of Message
        The replies; nothing in them is trusted.
    sent : sequence of Message
        The messages that they may answer.
    """
    sent_by_id: dict[str, Message] = {}
    nodes = {message.metadata.dst_node_id for message in sent}
    answered: set[str] = set()
    for reply in replies:
        message_id = reply.metadata.reply_to_message_id
        sender = reply.metadata.src_node_id
        # A grid sets the messages' ids only when it sends them: the index cannot be made before.
        if message_id not in sent_by_id:
            sent_by_id = {message.metadata.message_id: message for message in sent}
        message = sent_by_id.get(message_id)
        if message is not None and message_id not in answered:
            answered.add(message_id)
            yield _checked(reply, message)
        elif sender in nodes and (message is None or sender != message.metadata.dst_node_id):
            logger.warning(
                "a reply that claims to be from node %d answers no message sent to it: dropped",
                sender,
            )
        else:
            # A reply from a node that was not asked, or a node's second reply to one message. The
            # caller recognises and refuses both.
            yield reply
        del reply  # It need not stay in memory until the next reply comes.


def _checked(reply: Message, message: Message) -> Message:
    """Return the reply if its sender and size are right; otherwise an error in its place."""
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
