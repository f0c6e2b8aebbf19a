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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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

REPORT_SECONDS = 10.0  # How often a wait is told.

# Flower's codes for errors, whose home is not public.
MESSAGE_UNAVAILABLE = 3
NODE_UNAVAILABLE = 5
REGISTRATION_ENDED = 105  # No code of Flower's, whose errors do not tell it from a node's crash.
# What says that the SuperLink is gone; anything else may be a reply's own fault.
_CONNECTION_ERRORS = (httpx.HTTPError, OSError)


class ForwardingGrid(Grid):
    """Hands every call on to another grid; a subclass adds ``send_and_receive``.

    Parameters
    ----------
    grid : Grid
        The way to the clients, kept as ``inner``.
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
        """Refuse: it is deprecated in Flower."""
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
        """Return the replies that are there."""
        return self.inner.pull_messages(message_ids)


def stream_replies(
    grid: Grid, messages: Iterable[Message], timeout: float | None
) -> Iterator[Message]:
    """Send messages now; return an iterator over the replies.

    A grid that has ``stream_replies`` hands them over as they come, so that each can be freed once
    it is taken in; another one has all of them before the first is handed over.
    """
    stream = getattr(grid, "stream_replies", grid.send_and_receive)
    return iter(stream(messages, timeout=timeout))


@dataclass
class Closing:
    r"""Says of one round until when replies are waited for.

    With k usable replies at time :math:`\tau` after the round began, it closes at
    :math:`\tau + s`. A reply is usable once it was screened: nobody closes a round
    by sending nonsense early. A simulation looks at the clock as replies come: there the first one
    after that still counts.

    Parameters
    ----------
    quorum : int, optional
        k >= 1; ``None``: all that were asked are waited for.
    grace : float
        s >= 0, in seconds.
    awaited : frozenset of int
        Nodes asked in earlier rounds whose replies still count if they come now.
    keeps : bool
        Whether replies that are missing in the end count in later rounds.
    rounds : int
        In how many rounds the replies to its messages count, >= 1: in its own, and in later ones.
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
        """Begin to count, by the clock of whoever waits for the replies."""
        self.clock = clock or self.clock
        self.deadline = None
        if timeout is not None:
            self.deadline = self.clock() + timeout

    def count(self) -> None:
        """Take in that one more reply is usable."""
        self.usable += 1
        if self.usable == self.quorum:
            close = self.clock() + self.grace
            if self.deadline is None or close < self.deadline:
                self.deadline = close

    @property
    def has_quorum(self) -> bool:
        """Whether enough replies are usable."""
        return self.quorum is not None and self.usable >= self.quorum

    @property
    def wants_late(self) -> bool:
        """Whether a round waits on though all that is missing are replies to earlier ones."""
        if self.quorum is None:
            return not self.usable
        return not self.has_quorum

    def is_over(self) -> bool:
        """Tell whether nothing is waited for any more."""
        return self.deadline is not None and self.clock() >= self.deadline


class PollingGrid(ForwardingGrid):
    """Hands every call on to another grid, but waits for replies in its own way.

    Attributes
    ----------
    poll_seconds : float
        Pause after looking for a reply that is not there yet, > 0; and how long fetching a reply
        may take before the next is looked for meanwhile.
    restart_seconds : float
        How often to look whether a node that has not answered was started again, > 0.
    sweep_seconds : float
        When time is over, all that is still missing is looked for once more, for so long at most.
    most_fetched : int
        How many replies may be fetched at a time, >= 1: so many are in memory at once.
    slow_seconds : float
        A fetch that takes longer counts no more among them, > 0: it delays the others no further.
    """

    poll_seconds = 0.2
    restart_seconds = 5.0
    sweep_seconds = 5.0
    most_fetched = 4
    slow_seconds = 5.0

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._attendance = Attendance()
        self._late: dict[str, _Waiting] = {}

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
            At most one reply to each message; an error where the reply could not be read, and where
            the node was started again before it answered or is not registered any more.
        """
        return list(self.arrivals(messages, timeout, Closing()))

    def outstanding(self, awaited: Collection[int]) -> list[Message]:
        """Return the messages of earlier rounds to these nodes; forget the others."""
        self._late = {
            message_id: waiting
            for message_id, waiting in self._late.items()
            if waiting.node_id in awaited
        }
        return [waiting.message for waiting in self._late.values()]

    def last_seen(self, node_id: int) -> float | None:
        """Return when a node last answered, or else was found online, in seconds since 1970."""
        return self._attendance.last_seen(node_id)

    def unregistered(self, node_ids: Iterable[int]) -> set[int]:
        """Return those of the nodes that Flower would pass no message on to.

        It would to one that is merely offline.
        """
        nodes = list(node_ids)
        if not nodes:
            return set()
        # The questions are good for a second: nobody has to answer them.
        questions = [Message(RecordDict(), node, MessageType.QUERY, ttl=1.0) for node in nodes]
        message_ids = self.push_messages(questions)
        # A message gets no id where Flower knows no such node.
        pairs = zip(nodes, message_ids, strict=False)
        return {node for node, message_id in pairs if not message_id}

    def arrivals(
        self, messages: Iterable[Message], timeout: float | None, closing: Closing
    ) -> Iterator[Message]:
        """Send messages now; return the replies as they come, until the round closes.

        Replies to :meth:`outstanding` messages are among them. With ``closing.keeps``, what is
        missing in the end is outstanding.
        """
        sent = list(messages)
        ended = []
        waiting = {}
        for message_id, message in zip(self.push_messages(sent), sent, strict=False):
            if message_id:
                waiting[message_id] = _Waiting(message_id, message)
            else:  # Flower knows no such node any more.
                ended.append(_refusal_of_ended(message))
        fresh = set(waiting)
        if closing.keeps:  # A question between rounds leaves late replies to the next one.
            waiting |= self._late
        # Only now: a node that was started before this has the message still to come.
        now = self._activations() if waiting else {}
        for unanswered in waiting.values():
            if not unanswered.since:
                unanswered.since = now.get(unanswered.node_id, "")
        closing.begin(timeout, time.monotonic)
        # Of nodes that were started again since an earlier round.
        refused = self._refuse_restarted(waiting, now)
        return chain(ended, refused, self._wait_for_replies(waiting, fresh, closing))

    def _wait_for_replies(
        self, waiting: dict[str, _Waiting], fresh: set[str], closing: Closing
    ) -> Iterator[Message]:
        """Yield replies until the round closes."""
        began = looked = time.monotonic()
        due = began + REPORT_SECONDS
        # Late replies alone are waited for where the round needs them.
        while waiting and (not fresh.isdisjoint(waiting) or closing.wants_late):
            if closing.is_over():
                break
            if time.monotonic() >= due:
                missing = [unanswered.node_id for unanswered in waiting.values()]
                self._attendance.waiting(missing, time.monotonic() - began)
                due += REPORT_SECONDS
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
                del reply  # It need not stay in memory until the next is there.
            else:
                # To the end of the queue. Looking costs the SuperLink some 10 ms: only what is
                # not there is paused for, so that the last reply is found after one pause at most.
                waiting[message_id] = unanswered
                time.sleep(self.poll_seconds)
        late: list[Message] = []
        if not closing.has_quorum:
            late = self._look_once_more(waiting)
        if closing.keeps:
            self._late = waiting
        yield from late

    def _next(self, waiting: Mapping[str, _Waiting]) -> _Waiting:
        """Return whose reply to look for: one that was fetched meanwhile, else the queue's first.

        While enough are being fetched, the one of them that was begun first is waited for.
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
        """Return when each node that is online came online; tell the log who went and came."""
        nodes = list(self.get_nodes())
        self._attendance.look(nodes)
        return {node.node_id: node.last_activated_at for node in nodes}

    def _refuse_restarted(
        self, waiting: dict[str, _Waiting], now: dict[int, str]
    ) -> Iterator[Message]:
        """Take out what nodes that were started again were sent; yield a reply for each.

        It is the node's own where that had arrived before, otherwise a refusal.
        """
        for message_id, unanswered in list(waiting.items()):
            since = unanswered.since
            if not since or now.get(unanswered.node_id, since) == since:
                continue
            del waiting[message_id]
            reason = "the node was started again before it answered"
            reply = self._fetch_reply(unanswered, self.poll_seconds)
            yield reply or _refusal(unanswered.message, reason, NODE_UNAVAILABLE)

    def _look_once_more(self, waiting: dict[str, _Waiting]) -> list[Message]:
        """Look for all that is missing once more, whatever the others do meanwhile."""
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
        """Fetch a reply, or go on doing so, for some time; ``None``: it is not there yet."""
        pull = unanswered.fetch(self)
        if not wait([pull], seconds).done:
            return None
        unanswered.pull = None
        try:
            replies = pull.result()
        except _CONNECTION_ERRORS:
            raise
        except Exception as error:  # nothing that a client sends may stop the server
            self.get_node_ids()  # But a run that is over does: this says so.
            return _refusal(unanswered.message, f"the reply cannot be read: {error!r}")
        if not replies:
            return None
        if not replies[0].has_error():
            self._attendance.answered(unanswered.node_id)
            return replies[0]
        error_told = replies[0].error
        if error_told.code in (NODE_UNAVAILABLE, REGISTRATION_ENDED):
            if self.unregistered([unanswered.node_id]):
                return _refusal_of_ended(unanswered.message)
            # The code for an ended registration is nobody else's to send.
            error_told = Error(NODE_UNAVAILABLE, error_told.reason)
        return Message(error_told, reply_to=unanswered.message)


class Attendance:
    """Remembers who was online, to tell who is not any more."""

    def __init__(self) -> None:
        self._labels: dict[int, str] = {}
        self._online: set[int] | None = None
        self._seen: dict[int, float] = {}  # When a look last found it.
        self._answered: dict[int, float] = {}  # When a reply of it last came.

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
        """Take in that a reply of a node has come."""
        self._answered[node_id] = time.time()

    def last_seen(self, node_id: int) -> float | None:
        """Return when a node last answered, in seconds since 1970.

        Of one that never did, when a look last found it; ``None``: none did. Flower takes a node
        for online up to a minute after its death, so looks alone say too late a time.
        """
        return self._answered.get(node_id, self._seen.get(node_id))

    def waiting(self, node_ids: Iterable[int], seconds: float) -> None:
        """Log who has not answered for so long."""
        missing = [self._labels.get(node_id) or label(node_id) for node_id in node_ids]
        logger.info("%.0f s: waiting for %s; %s", seconds, enumerated(missing), self._count())

    def _count(self) -> str:
        return f"{len(self._online or ())} of {len(self._labels)} online"


def label(node_id: int, name: str = "") -> str:
    """Return how messages name a node."""
    return ClientNode(UNKNOWN_PARTITION, node_id, name=name).label


@dataclass
class _Waiting:
    """A message without a reply; when its node had come online, and what fetches the reply."""

    message_id: str
    message: Message
    since: str = ""
    pull: Future[list[Message]] | None = None
    fetch_began: float = 0.0  # By time.monotonic.

    @property
    def is_fetched(self) -> bool:
        """Whether the reply, or that there is none, is known by now."""
        return self.pull is not None and self.pull.done()

    @property
    def node_id(self) -> int:
        return self.message.metadata.dst_node_id

    def fetch(self, grid: PollingGrid) -> Future[list[Message]]:
        """Begin to fetch the reply, which can be done once, unless that has begun."""
        if self.pull is None:
            self.pull = Future()
            self.fetch_began = time.monotonic()
            # A thread that nobody has to wait for, at the end of the program either.
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
