"""How fast each node may go: a request waits a little for its turn, then it is refused."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

Clock = Callable[[], float]
# A run's own need: what a round takes, every so many seconds, and so many rounds at once.
ROUND_SECONDS = 5.0
ROUNDS_AT_ONCE = 4.0
LEAST_SECONDS_AT_ONCE = 5.0
# A request waits this long at most. A SuperNode has four of them at once, which wait for less.
PATIENCE = 0.5
LOOK_PAUSE = 1.0  # Between looks at what rounds need.
LOG_PAUSE = 60.0
MOST_SUBJECTS = 4096


@dataclass
class Bucket:
    """Fills at ``rate`` a second up to ``most``; what is taken beyond that is owed.

    Attributes
    ----------
    rate, most : float
        In units of what is taken, > 0.
    clock : Callable
        Returns seconds.
    """

    rate: float
    most: float
    clock: Clock = time.monotonic
    level: float = field(init=False)
    _filled: float = field(init=False)

    def __post_init__(self) -> None:
        self.level, self._filled = self.most, self.clock()

    def wait(self) -> float:
        """Return the seconds until nothing is owed any more."""
        now = self.clock()
        self.level = min(self.level + (now - self._filled) * self.rate, self.most)
        self._filled = now
        return max(0.0, -self.level / self.rate)

    def take(self, amount: float) -> None:
        """Take an amount, whatever there is."""
        self.level -= amount

    def resize(self, rate: float, most: float) -> None:
        """Fill at another rate from now on; what it may hold more is there at once."""
        self.wait()
        self.level += max(0.0, most - self.most)
        self.rate, self.most = rate, most


@dataclass
class _Node:
    requests: Bucket
    size: Bucket


class NodeRates:
    """What each node has taken of its requests and bytes.

    Parameters
    ----------
    requests, size : float
        Requests and bytes a second that every node has.
    round_needs : Callable
        Returns the requests and the bytes of a round of the largest run: a node may take
        :data:`ROUNDS_AT_ONCE` of them at once, and one every :data:`ROUND_SECONDS`.
    clock : Callable
        Returns seconds.
    """

    def __init__(
        self,
        requests: float,
        size: float,
        round_needs: Callable[[], tuple[float, float]],
        clock: Clock = time.monotonic,
    ) -> None:
        self._least = requests, size
        self._round_needs = round_needs
        self._clock = clock
        self._nodes: OrderedDict[int, _Node] = OrderedDict()
        self._looked, self._needs = -math.inf, (0.0, 0.0)

    def wait(self, node_id: int, cost: float, size: int) -> float | None:
        """Take a request and its bytes; return the seconds to wait, ``None``: it is refused.

        Parameters
        ----------
        node_id : int
            Who sends it.
        cost : float
            What it costs the server, in requests of the usual kind.
        size : int
            Its body's bytes.
        """
        node = self._node(node_id)
        wait = max(node.requests.wait(), node.size.wait())
        if wait > PATIENCE:
            return None
        node.requests.take(cost)
        node.size.take(size)
        return wait

    def charge(self, node_id: int, cost: float, size: int) -> None:
        """Take what an answer costs, which later requests wait for."""
        node = self._node(node_id)
        node.requests.take(cost)
        node.size.take(size)

    def _node(self, node_id: int) -> _Node:
        if self._clock() - self._looked >= LOOK_PAUSE:
            self._looked, self._needs = self._clock(), self._round_needs()
        (requests, most_requests), (size, most_size) = (
            (
                max(least, need / ROUND_SECONDS),
                max(least * LEAST_SECONDS_AT_ONCE, need * ROUNDS_AT_ONCE),
            )
            for least, need in zip(self._least, self._needs, strict=True)
        )
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = _Node(
                Bucket(requests, most_requests, self._clock), Bucket(size, most_size, self._clock)
            )
            while len(self._nodes) > MOST_SUBJECTS:
                self._nodes.popitem(last=False)
        self._nodes.move_to_end(node_id)
        if node.requests.most != most_requests or node.size.most != most_size:
            node.requests.resize(requests, most_requests)
            node.size.resize(size, most_size)
        return node


class Complaints:
    """Logs what is refused, once a minute for each subject, with how often it was.

    Parameters
    ----------
    clock : Callable
        Returns seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(self, subject: str, what: str, name: Callable[[str], str] = str) -> None:
        """Note one more; ``what`` is said after the subject, which ``name`` may say better."""
        now = self._clock()
        last, count = self._seen.pop(f"{subject}: {what}", (-math.inf, 0))
        count += 1
        if now - last >= LOG_PAUSE:
            logger.warning("%s: %s (%d since last said)", name(subject), what, count)
            last, count = now, 0
        self._seen[f"{subject}: {what}"] = last, count
        while len(self._seen) > MOST_SUBJECTS:
            self._seen.popitem(last=False)
