"""A Flower ``Grid`` that looks for replies often and waits for none longer than it has to.

Flower's own grid looks for replies every three seconds, and fetches all replies of a round at once:
one that cannot be read ends the run, and one that was announced but never uploaded delays the round
far beyond its deadline. This grid looks five times a second and fetches each reply on its own, in a
thread if that takes long, so that a bad or slow one delays no other. It also notices a node that
was restarted between two looks: the node's work is lost, and waiting for it would take the whole
timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, wait
from threading import Thread

import httpx
from flwr.app import Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedif_flower.messages.attendance import REPORT_SECONDS, Attendance
from fedif_flower.messages.closing import Closing
from fedif_flower.messages.forwarding_grid import ForwardingGrid
from fedif_flower.messages.screening import REGISTRATION_ENDED

logger = logging.getLogger(__name__)

# Flower's codes for errors, whose home is not public.
MESSAGE_UNAVAILABLE = 3
NODE_UNAVAILABLE = 5
# What says that the SuperLink is gone; anything else may be a reply's own fault.
_CONNECTION_ERRORS = (httpx.HTTPError, OSError)


class PollingGrid(ForwardingGrid):
    """Hands every call on to another grid, but waits for replies in its own way.

    Parameters
    ----------
    grid : Grid
        The way to the clients.
    poll_seconds : float
        Pause after looking for a reply that is not there yet, > 0; and how long fetching a reply
        may take before the next is looked for meanwhile.
    restart_seconds : float
        How often to look whether a node that has not answered was started again, > 0.
    sweep_seconds : float
        When time is over, all that is still missing is looked for once more, for so long at most.
    """

    def __init__(
        self,
        grid: Grid,
        poll_seconds: float = 0.2,
        restart_seconds: float = 5.0,
        sweep_seconds: float = 5.0,
    ) -> None:
        super().__init__(grid)
        self._poll_seconds = poll_seconds
        self._restart_seconds = restart_seconds
        self._sweep_seconds = sweep_seconds
        self._attendance = Attendance()
        self._late: dict[str, Message] = {}
        self._late_since: dict[int, str] = {}  # When their nodes came online, as they were sent.
        self._late_pulls: dict[str, Future[list[Message]]] = {}  # Those being fetched already.

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
            started again before it answered or is not registered any more.
        """
        return list(self.arrivals(messages, timeout, Closing()))

    def outstanding(self, awaited: Collection[int]) -> list[Message]:
        """Return the messages of earlier rounds to these nodes; forget the others."""
        self._late = {
            i: message
            for i, message in self._late.items()
            if message.metadata.dst_node_id in awaited
        }
        return list(self._late.values())

    def last_seen(self, node_id: int) -> float | None:
        """Return when a node was last found online, in seconds since 1970, if it ever was."""
        return self._attendance.last_seen(node_id)

    def unregistered(self, node_ids: Iterable[int]) -> set[int]:
        """Return those of the nodes that Flower would pass no message on to.

        It would to one that is merely offline.
        """
        asked = list(node_ids)
        # They are good for a second: nobody has to answer them.
        messages = [Message(RecordDict(), i, MessageType.QUERY, ttl=1.0) for i in asked]
        sent = self.push_messages(messages) if messages else ()
        return {node_id for node_id, i in zip(asked, sent, strict=False) if not i}

    def arrivals(
        self, messages: Iterable[Message], timeout: float | None, closing: Closing
    ) -> Iterator[Message]:
        """Send messages now; return the replies as they come, until the round closes.

        Replies to :meth:`outstanding` messages are among them. With ``closing.keeps``, what is
        missing in the end is outstanding.
        """
        sent = list(messages)
        pushed = list(zip(self.push_messages(sent), sent, strict=False))
        round_ = _Round({i: message for i, message in pushed if i})
        # An id is missing where Flower knows no such node any more.
        round_.replies += [_ended(message) for i, message in pushed if not i]
        round_.fresh = set(round_.waiting)
        if closing.keeps:  # A question between rounds leaves late replies to the next one.
            round_.waiting |= self._late
            # A reply can be fetched once: one that a round began to fetch is in its hands.
            round_.pulls |= {i: p for i, p in self._late_pulls.items() if i in self._late}
        # Only now: a node that was started before this has the message still to come.
        now = self._activations() if round_.waiting else {}
        closing.begin(timeout, time.monotonic)
        since = now
        if closing.keeps and self._late:
            since = now | self._late_since
            self._give_up_lost(round_, since, now)  # Started again since an earlier round.
        return self._arrivals(round_, since, closing)

    def _arrivals(
        self, round_: _Round, activations: dict[int, str], closing: Closing
    ) -> Iterator[Message]:
        yield from round_.taken()
        began = looked = time.monotonic()
        due = began + REPORT_SECONDS
        while round_.is_open(closing) and not closing.is_over():
            if (now := time.monotonic()) >= due:
                missing = [message.metadata.dst_node_id for message in round_.waiting.values()]
                self._attendance.waiting(missing, now - began)
                due += REPORT_SECONDS
            if time.monotonic() - looked >= self._restart_seconds:
                self._give_up_lost(round_, activations, self._activations())
                looked = time.monotonic()
                yield from round_.taken()
                continue
            message_id = next(iter(round_.waiting))
            if not self._look(round_, message_id, self._poll_seconds):
                # To the end of the queue. Looking costs the SuperLink some 10 ms: only what is
                # not there is paused for, so that the last reply is found after one pause at most.
                round_.waiting[message_id] = round_.waiting.pop(message_id)
                time.sleep(self._poll_seconds)
            yield from round_.taken()
        if not closing.has_quorum:
            self._sweep(round_)
        if closing.keeps:
            self._late = dict(round_.waiting)
            self._late_pulls = {i: p for i, p in round_.pulls.items() if i in self._late}
            nodes = {message.metadata.dst_node_id for message in self._late.values()}
            self._late_since = {i: at for i, at in activations.items() if i in nodes}
        yield from round_.taken()

    def _activations(self) -> dict[int, str]:
        """Return when each node that is online came online; tell the log who went and came."""
        nodes = list(self.get_nodes())
        self._attendance.look(nodes)
        return {node.node_id: node.last_activated_at for node in nodes}

    def _give_up_lost(self, round_: _Round, before: dict[int, str], now: dict[int, str]) -> None:
        """Take the messages to nodes that were started again out of those waiting."""
        for message_id, message in list(round_.waiting.items()):
            node_id = message.metadata.dst_node_id
            if node_id not in now or now[node_id] == before.get(node_id, now[node_id]):
                continue
            if not self._look(round_, message_id, self._poll_seconds):
                reason = "the node was started again before it answered"
                round_.take(message_id, _refusal(message, reason, NODE_UNAVAILABLE))

    def _sweep(self, round_: _Round) -> None:
        """Look for all that is missing once more, whatever the others do meanwhile."""
        pulls = [round_.pull(message_id, self) for message_id in round_.waiting]
        if round_.waiting:
            wait(pulls, self._sweep_seconds)
        for message_id in list(round_.waiting):
            self._look(round_, message_id, 0.0)

    def _look(self, round_: _Round, message_id: str, seconds: float) -> bool:
        """Fetch a reply, or go on doing so, for some time; return whether it is there."""
        pull = round_.pull(message_id, self)
        if not wait([pull], seconds).done:
            return False
        del round_.pulls[message_id]
        try:
            replies = pull.result()
        except _CONNECTION_ERRORS:
            raise
        except Exception as error:  # nothing that a client sends may stop the server
            self.get_node_ids()  # But a run that is over does: this says so.
            replies = [_refusal(round_.waiting[message_id], f"the reply cannot be read: {error!r}")]
        if not replies:
            return False
        reply = self._told_apart(replies[0], round_.waiting[message_id])
        round_.take(message_id, reply)
        return True

    def _told_apart(self, reply: Message, message: Message) -> Message:
        """Return a reply; where a node is gone, say whether it is offline or not registered."""
        code = reply.error.code if reply.has_error() else None
        if code not in (NODE_UNAVAILABLE, REGISTRATION_ENDED):
            return reply
        if self.unregistered([message.metadata.dst_node_id]):
            return _ended(message)
        return Message(Error(NODE_UNAVAILABLE, reply.error.reason), reply_to=message)


class _Round:
    """The messages that wait for a reply, those being fetched, and the replies."""

    def __init__(self, waiting: dict[str, Message]) -> None:
        self.waiting = waiting
        self.pulls: dict[str, Future[list[Message]]] = {}
        self.replies: list[Message] = []
        self.fresh: set[str] = set()  # The ids of this round's own messages.

    def is_open(self, closing: Closing) -> bool:
        """Tell whether a reply is missing that the round waits for."""
        if not self.waiting or not self.fresh.isdisjoint(self.waiting):
            return bool(self.waiting)
        # Only late ones are missing: they are waited for where the round needs them.
        return closing.wants_late

    def taken(self) -> Iterator[Message]:
        """Hand on the replies that were taken so far."""
        while self.replies:
            yield self.replies.pop(0)

    def pull(self, message_id: str, grid: PollingGrid) -> Future[list[Message]]:
        """Begin to fetch a reply, unless that has begun."""
        if message_id not in self.pulls:
            self.pulls[message_id] = _in_a_thread(grid, message_id)
        return self.pulls[message_id]

    def take(self, message_id: str, reply: Message) -> None:
        """Take a reply as the answer to a message, if its sender is whom the message went to."""
        message = self.waiting.pop(message_id)
        self.pulls.pop(message_id, None)
        if reply.has_error():
            reply = Message(reply.error, reply_to=message)
        claimed = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
        if claimed != (message.metadata.dst_node_id, message_id):
            reply = _refusal(message, f"the reply says that it comes from node {claimed[0]}")
        self.replies.append(reply)


def _in_a_thread(grid: PollingGrid, message_id: str) -> Future[list[Message]]:
    """Fetch a reply in a thread that nobody has to wait for, at the end of the program either."""
    future: Future[list[Message]] = Future()

    def fetch() -> None:
        try:
            future.set_result(list(grid.pull_messages([message_id])))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=fetch, name=f"reply-{message_id[:8]}", daemon=True).start()
    return future


def _ended(message: Message) -> Message:
    return _refusal(message, "the operator ended its registration", REGISTRATION_ENDED)


def _refusal(message: Message, reason: str, code: int = MESSAGE_UNAVAILABLE) -> Message:
    logger.warning("node %d: %s", message.metadata.dst_node_id, reason[:500])
    return Message(Error(code=code, reason=reason[:500]), reply_to=message)
