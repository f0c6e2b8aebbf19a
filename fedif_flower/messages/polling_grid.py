"""A Flower ``Grid`` that looks for replies often and waits for none longer than it has to.

Flower's own grid looks for replies every three seconds and fetches all replies of a round at once.
There a reply that cannot be read ends the run, and a reply that was announced but never uploaded
delays the round far beyond its deadline. This grid looks five times a second and fetches each
reply in a thread of its own, so that a bad or slow reply delays no other. It also notices a node
that was restarted between two looks: the node's work is lost, and waiting for its reply would take
the whole timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import chain
from threading import Thread
from typing import Any, NoReturn

import httpx
from flwr.app import Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedif_flower.messages.client_node import UNKNOWN_PARTITION, ClientNode
from fedif_flower.words import enumerated

logger = logging.getLogger(__name__)

REPORT_SECONDS = 10.0  # How often the log says for whom the round waits.
# How long a message lives that only asks whether Flower knows a node. The SuperLink refuses a whole
# request with an expired message, and the error ends the run: so it must reach the SuperLink in
# time, also from a busy host or one whose clock is behind.
_QUESTION_SECONDS = 120.0

# Flower's error codes, repeated here because Flower keeps them in a private module.
MESSAGE_UNAVAILABLE = 3
REPLY_UNAVAILABLE = 4
NODE_UNAVAILABLE = 5
# A code of this package. Flower's own errors do not tell an ended registration from a crash.
REGISTRATION_ENDED = 105
# Errors that say that the SuperLink is gone; any other error may be the fault of a reply.
CONNECTION_ERRORS = (httpx.HTTPError, OSError)
# Errors in place of a reply that never comes. Flower hands a reply out once: if its answer is lost,
# as to a busy host, it says that the message is unavailable when it is asked again.
_LOST = (MESSAGE_UNAVAILABLE, REPLY_UNAVAILABLE, NODE_UNAVAILABLE, REGISTRATION_ENDED)


class ForwardingGrid(Grid):
    """Hands every call on to another grid; a subclass adds ``send_and_receive``.

    Parameters
    ----------
    grid : Grid
        The grid that reaches the clients, kept as ``inner``.
    """

    def __init__(self, grid: Grid) -> None:
        self.inner = grid

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        """The run that the grid belongs to."""
        return self.inner.run

    def create_message(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise RuntimeError: the method is deprecated in Flower."""
        raise RuntimeError("construct a flwr.app.Message instead")

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are online."""
        return self.inner.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes that are online."""
        return self.inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have come."""
        return self.inner.pull_messages(message_ids)


def stream_replies(
    grid: Grid, messages: Iterable[Message], timeout: float | None
) -> Iterator[Message]:
    """Send messages now; return an iterator over the replies.

    A grid with a method ``stream_replies`` hands over each reply as it comes, so that it can be
    freed once it is taken in. Any other grid gathers all replies before it hands over the first.

    Parameters
    ----------
    grid : Grid
        The grid that sends.
    messages : iterable of Message
        The messages.
    timeout : float, optional
        Seconds; ``None``: wait for as long as it takes.
    """
    stream = getattr(grid, "stream_replies", grid.send_and_receive)
    return iter(stream(messages, timeout=timeout))


@dataclass
class Closing:
    r"""Decides when one round stops waiting for replies.

    A round that has k usable replies at time :math:`\tau` closes at :math:`\tau + s`, or at its
    timeout if that is earlier. A reply is usable once screening has accepted it, so nobody can
    close a round by sending nonsense early. A simulation looks at the clock only when a reply
    comes, so there the first reply after the close still counts.

    Parameters
    ----------
    quorum : int, optional
        The number k of usable replies, >= 1; ``None``: the round waits for all clients it asked.
    grace : float
        The time s >= 0 that the round waits on for more replies, in seconds.
    awaited : frozenset of int
        Ids of nodes asked in earlier rounds whose replies still count if they come now.
    keeps : bool
        Whether replies that are missing when the round closes count in later rounds.
    rounds : int
        In how many rounds the replies to this round's messages count, >= 1: this one is the first.
    clock : callable
        Returns the time in seconds.

    Attributes
    ----------
    usable : int
        How many usable replies have come.
    deadline : float, optional
        When the round closes, by ``clock``; ``None``: not decided yet.
    """

    quorum: int | None = None
    grace: float = 0.0
    awaited: frozenset[int] = frozenset()
    keeps: bool = False
    rounds: int = 1
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    usable: int = field(default=0, init=False)
    deadline: float | None = field(default=None, init=False)

    def begin(self, timeout: float | None, clock: Callable[[], float] | None = None) -> None:
        """Set the deadline to ``timeout`` seconds from now; ``None``: there is none yet.

        Parameters
        ----------
        timeout : float, optional
            Seconds that the round waits at most.
        clock : callable, optional
            The clock of the grid that waits, in place of the one given before.
        """
        self.clock = clock or self.clock
        self.deadline = None
        if timeout is not None:
            self.deadline = self.clock() + timeout

    def count(self) -> None:
        """Count one more usable reply; the one that completes the quorum sets the deadline."""
        self.usable += 1
        if self.usable == self.quorum:
            close = self.clock() + self.grace
            if self.deadline is None or close < self.deadline:
                self.deadline = close

    @property
    def has_quorum(self) -> bool:
        """Whether there is a quorum, and it is reached."""
        return self.quorum is not None and self.usable >= self.quorum

    @property
    def wants_late(self) -> bool:
        """Whether the round waits on when only replies to earlier rounds are still missing.

        It does until it has its quorum, or at least one usable reply if it has no quorum.
        """
        if self.quorum is None:
            return not self.usable
        return not self.has_quorum

    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and self.clock() >= self.deadline


class PollingGrid(ForwardingGrid):
    """Hands every call on to another grid, but waits for replies in its own way.

    Attributes
    ----------
    poll_seconds : float
        Seconds, > 0. Each look for a reply takes at most this long: if fetching the reply takes
        longer, it goes on in its thread while the grid looks for the next. A pause of the same
        length follows a look that finds no reply.
    restart_seconds : float
        Seconds, > 0, between two checks whether a node that has not answered was started again.
    sweep_seconds : float
        When time is over, the grid looks once more for all missing replies, for at most so many
        seconds.
    most_fetched : int
        How many replies may be fetched at the same time, >= 1, and thus be in memory at once. The
        last look, when time is over, fetches all at the same time.
    slow_seconds : float
        Seconds, > 0. A fetch that takes longer no longer counts towards ``most_fetched``, so that
        it does not hold up the others.
    """

    poll_seconds = 0.2
    restart_seconds = 5.0
    sweep_seconds = 5.0
    most_fetched = 4
    slow_seconds = 5.0

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._attendance = Attendance()
        self._late: dict[str, _Waiting] = {}  # Unanswered messages of earlier rounds, by id.

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and wait until each is answered or time is over.

        Parameters
        ----------
        messages : iterable of Message
            At most one to each node, if the caller tells replies apart by their senders.
        timeout : float, optional
            Seconds; ``None``: wait for as long as it takes.

        Returns
        -------
        list of Message
            At most one reply to each message. It is an error if the reply could not be read, if
            the node was started again before it answered, or if it is no longer registered.
        """
        return list(self.stream_replies(messages, timeout=timeout))

    def outstanding(self, awaited: Collection[int]) -> list[Message]:
        """Return the unanswered messages of earlier rounds to these nodes; forget all others.

        Parameters
        ----------
        awaited : collection of int
            Node ids.
        """
        self._late = {
            message_id: waiting
            for message_id, waiting in self._late.items()
            if waiting.node_id in awaited
        }
        return [waiting.message for waiting in self._late.values()]

    def last_seen(self, node_id: int) -> float | None:
        """Return when a node last answered, in seconds since 1970 (see :class:`Attendance`)."""
        return self._attendance.last_seen(node_id)

    def unregistered(self, node_ids: Iterable[int]) -> set[int]:
        """Return those of the nodes that are no longer registered with Flower.

        Flower takes no message for such a node. It does take one for a node that is only offline.
        """
        nodes = list(node_ids)
        if not nodes:
            return set()
        # Nobody has to answer: Flower's taking the messages is enough.
        questions = [
            Message(RecordDict(), node, MessageType.QUERY, ttl=_QUESTION_SECONDS) for node in nodes
        ]
        message_ids = self._send(questions)
        # A message gets no id if Flower knows no such node.
        pairs = zip(nodes, message_ids, strict=True)
        return {node for node, message_id in pairs if not message_id}

    def _send(self, messages: Sequence[Message]) -> list[str]:
        """Send messages and return the id of each; empty: Flower no longer knows the node.

        Raises
        ------
        RuntimeError
            If the messages got no ids: a request that is too large for the SuperLink is answered
            with an empty list.
        """
        message_ids = list(self.push_messages(messages))
        if len(message_ids) != len(messages):
            raise RuntimeError(
                f"{len(messages)} messages were sent and {len(message_ids)} taken: the request may "
                "be too large for the SuperLink or for a proxy before it; see Flower's log"
            )
        return message_ids

    def stream_replies(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        closing: Closing | None = None,
    ) -> Iterator[Message]:
        """Send messages now; return the replies as they come, until the round closes.

        With ``closing.keeps``, replies to :meth:`outstanding` messages of earlier rounds are among
        them, and messages without a reply in the end become outstanding.

        Parameters
        ----------
        messages : iterable of Message
            The messages of this round.
        timeout : float, optional
            Seconds; ``None``: wait for as long as it takes.
        closing : Closing, optional
            Decides when the round closes. The caller counts usable replies in it. ``None``: it
            closes once all have answered, or time is over.
        """
        closing = closing or Closing()
        sent = list(messages)
        ended = []
        waiting = {}
        for message_id, message in zip(self._send(sent), sent, strict=True):
            if message_id:
                waiting[message_id] = _Waiting(message_id, message)
            else:  # Flower no longer knows the node.
                ended.append(_refusal_of_ended(message))
        fresh = set(waiting)
        # Questions between rounds do not keep replies: they leave late ones to the next round.
        if closing.keeps:
            waiting |= self._late
        # Activation times are read only after sending: a node that was restarted before this moment
        # still gets its message.
        now = self._activations() if waiting else {}
        # Messages of earlier rounds keep the activation times of their own rounds.
        for unanswered in waiting.values():
            if not unanswered.since:
                unanswered.since = now.get(unanswered.node_id, "")
        closing.begin(timeout, time.monotonic)
        # Nodes that were started again since an earlier round have lost that round's work.
        refused = self._refuse_restarted(waiting, now)
        return chain(ended, refused, self._wait_for_replies(waiting, fresh, closing))

    def _wait_for_replies(
        self, waiting: dict[str, _Waiting], fresh: set[str], closing: Closing
    ) -> Iterator[Message]:
        """Yield replies until the round closes."""
        began = looked = time.monotonic()
        due = began + REPORT_SECONDS
        # If only replies to earlier rounds are missing, the round waits only while it needs them.
        while waiting and (not fresh.isdisjoint(waiting) or closing.wants_late):
            if closing.is_over():
                break
            now = time.monotonic()
            if now >= due:
                missing = [unanswered.node_id for unanswered in waiting.values()]
                self._attendance.waiting(missing, now - began)
                due = now + REPORT_SECONDS
            if time.monotonic() - looked >= self.restart_seconds:
                yield from self._refuse_restarted(waiting, self._activations())
                looked = time.monotonic()
                continue
            unanswered = self._next(waiting)
            message_id = unanswered.message_id
            del waiting[message_id]
            reply = self._fetch_reply(unanswered, self.poll_seconds)
            if reply:
                yield reply
                del reply  # It need not stay in memory until the next reply comes.
            else:
                # The message goes to the end of the queue. Each look costs the SuperLink some
                # 10 ms, hence the pause. It follows only a look that found nothing, so that replies
                # that are there are fetched without pauses between them.
                waiting[message_id] = unanswered
                time.sleep(self.poll_seconds)
        late: list[Message] = []
        # Replies that have come since the last look for them still count, unless the quorum closed
        # the round at once.
        if not closing.has_quorum or closing.grace > 0:
            late = self._look_once_more(waiting)
        if closing.keeps:
            self._late = waiting
        yield from late

    def _next(self, waiting: Mapping[str, _Waiting]) -> _Waiting:
        """Return the message whose reply to look for next.

        A reply that a thread has fetched meanwhile comes first. If ``most_fetched`` fetches are
        under way, the oldest of them is next: no new one begins. Otherwise the queue's first is.
        """
        begun = [unanswered for unanswered in waiting.values() if unanswered.pull is not None]
        for unanswered in begun:
            if unanswered.is_fetched:
                return unanswered
        late = time.monotonic() - self.slow_seconds
        in_time = [unanswered for unanswered in begun if unanswered.fetch_began > late]
        if len(in_time) >= self.most_fetched:
            return min(in_time, key=lambda unanswered: unanswered.fetch_began)
        return next(iter(waiting.values()))

    def _activations(self) -> dict[int, str]:
        """Return each online node's last activation time; log who went offline and came online."""
        nodes = list(self.get_nodes())
        self._attendance.look(nodes)
        return {node.node_id: node.last_activated_at for node in nodes}

    def _refuse_restarted(
        self, waiting: dict[str, _Waiting], now: dict[int, str]
    ) -> Iterator[Message]:
        """Remove the messages whose nodes were started again; yield a reply to each.

        The reply is the node's own if it had arrived, and an error otherwise. A message whose reply
        takes longer than ``poll_seconds`` to fetch stays: a later call finds out what came of it.

        Parameters
        ----------
        waiting : dict of str to _Waiting
            Unanswered messages by id; changed in place.
        now : dict of int to str
            When each online node was last activated, by node id.
        """
        for message_id, unanswered in list(waiting.items()):
            since = unanswered.since
            if not since or now.get(unanswered.node_id, since) == since:
                continue
            reply = self._fetch_reply(unanswered, self.poll_seconds)
            is_being_fetched = unanswered.pull is not None
            if is_being_fetched:
                continue
            del waiting[message_id]
            reason = "the node was started again before it answered"
            yield reply or _refusal(unanswered.message, reason, NODE_UNAVAILABLE)

    def _look_once_more(self, waiting: dict[str, _Waiting]) -> list[Message]:
        """Look once more for all missing replies, all at the same time; return those found."""
        pulls = [unanswered.fetch(self) for unanswered in waiting.values()]
        wait(pulls, self.sweep_seconds)
        replies = []
        for message_id, unanswered in list(waiting.items()):
            reply = self._fetch_reply(unanswered, 0.0)
            if reply:
                del waiting[message_id]
                replies.append(reply)
        return replies

    def _fetch_reply(self, unanswered: _Waiting, seconds: float) -> Message | None:
        """Begin or go on to fetch a reply, for ``seconds`` at most.

        Returns
        -------
        Message or None
            The reply, or an error in its place if it cannot be read or the node is not registered
            any more; ``None``: it is not there yet.
        """
        pull = unanswered.fetch(self)
        if not wait([pull], seconds).done:
            return None
        unanswered.pull = None  # This fetch is over: the next look begins another.
        try:
            replies = pull.result()
        except CONNECTION_ERRORS:
            raise
        except Exception as error:  # Nothing that a client sends may stop the server.
            self.get_node_ids()  # A run that was stopped ends the server: then this call raises.
            return _refusal(unanswered.message, f"the reply cannot be read: {error!r}")
        if not replies:
            return None
        if not replies[0].has_error():
            self._attendance.answered(unanswered.node_id)
            return replies[0]
        error_told = replies[0].error
        if error_told.code in _LOST:
            if self.unregistered([unanswered.node_id]):
                return _refusal_of_ended(unanswered.message)
            # Only this grid may say that a registration ended, or that a reply cannot be read: a
            # client may have sent the code.
            error_told = Error(NODE_UNAVAILABLE, error_told.reason)
        return Message(error_told, reply_to=unanswered.message)


class Attendance:
    """Remembers which nodes were online and when they answered, and logs who comes and goes."""

    def __init__(self) -> None:
        self._labels: dict[int, str] = {}  # The names of all nodes that were ever online.
        self._online: set[int] | None = None  # The nodes that the last look found.
        self._seen: dict[int, float] = {}  # When each node was last found online.
        self._answered: dict[int, float] = {}  # When each node's last reply came.

    def look(self, nodes: Iterable[Any]) -> None:
        """Log who went away and who came since the last look; the first one logs nothing."""
        online = {node.node_id: label(node.node_id, node.name) for node in nodes}
        earlier = self._online
        self._online = set(online)
        seen_before = set(self._labels)
        self._labels |= online
        self._seen |= dict.fromkeys(online, time.time())
        if earlier is None:
            return
        for node_id in sorted(earlier - self._online):
            logger.warning("%s is offline: %s", self._labels[node_id], self._count())
        for node_id in sorted(self._online - earlier):
            returned = "back" if node_id in seen_before else "there"
            logger.warning("%s is %s: %s", self._labels[node_id], returned, self._count())

    def answered(self, node_id: int) -> None:
        """Remember that a reply of this node has come just now."""
        self._answered[node_id] = time.time()

    def last_seen(self, node_id: int) -> float | None:
        """Return when a node last answered, in seconds since 1970.

        For a node that never answered it is when the node was last found online, and ``None`` if it
        never was. Answers come first because Flower counts a node as online for up to a minute
        after its death.
        """
        return self._answered.get(node_id, self._seen.get(node_id))

    def waiting(self, node_ids: Iterable[int], seconds: float) -> None:
        """Log which nodes have not answered in the ``seconds`` since the round began."""
        missing = [self._labels.get(node_id) or label(node_id) for node_id in node_ids]
        logger.info("%.0f s: waiting for %s; %s", seconds, enumerated(missing), self._count())

    def _count(self) -> str:
        return f"{len(self._online or ())} of {len(self._labels)} online"


def label(node_id: int, name: str = "") -> str:
    """Return a node's name in log messages."""
    return ClientNode(UNKNOWN_PARTITION, node_id, name=name).label


@dataclass
class _Waiting:
    """A message that waits for its reply.

    Attributes
    ----------
    message_id : str
        The id that Flower gave the message.
    message : Message
        The message.
    since : str
        When the message's node was last activated, as Flower says; empty if that is not known.
    pull : Future, optional
        The fetch of the reply, while one is under way.
    fetch_began : float
        When that fetch began, by :func:`time.monotonic`.
    """

    message_id: str
    message: Message
    since: str = ""
    pull: Future[list[Message]] | None = None
    fetch_began: float = 0.0

    @property
    def is_fetched(self) -> bool:
        """Whether a fetch has ended, with a reply or without one."""
        return self.pull is not None and self.pull.done()

    @property
    def node_id(self) -> int:
        return self.message.metadata.dst_node_id

    def fetch(self, grid: PollingGrid) -> Future[list[Message]]:
        """Return the fetch of the reply; begin one unless one is under way.

        Flower hands over a reply only once, so its fetch must not be dropped.
        """
        if self.pull is None:
            self.pull = Future()
            self.fetch_began = time.monotonic()
            # A daemon thread, unlike one of a pool, does not hold up the end of the program.
            Thread(target=_fetch, args=(grid, self.message_id, self.pull), daemon=True).start()
        return self.pull


def _fetch(grid: PollingGrid, message_id: str, future: Future[list[Message]]) -> None:
    try:
        future.set_result(list(grid.pull_messages([message_id])))
    except BaseException as error:
        future.set_exception(error)


def _refusal_of_ended(message: Message) -> Message:
    return _refusal(message, "the operator ended its registration", REGISTRATION_ENDED)


def _refusal(message: Message, reason: str, code: int = MESSAGE_UNAVAILABLE) -> Message:
    logger.warning("node %d: %s", message.metadata.dst_node_id, reason[:500])
    return Message(Error(code=code, reason=reason[:500]), reply_to=message)
