"""Who is online, told to the log: each absence and return, and who is waited for."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Protocol

from fedif_flower.messages.client_node import UNKNOWN_PARTITION, ClientNode

REPORT_SECONDS = 10.0  # How often a wait is told.
_MOST_NAMES = 10
logger = logging.getLogger(__name__)


class OnlineNode(Protocol):
    """What Flower says of a node that is online."""

    node_id: int
    name: str


class Attendance:
    """Remembers who was online, to tell who is not any more."""

    def __init__(self) -> None:
        self._labels: dict[int, str] = {}
        self._online: set[int] | None = None
        self._looked = 0.0
        self._left: dict[int, float] = {}

    def look(self, nodes: Iterable[OnlineNode]) -> None:
        """Log who went away and who came since the last look; the first one logs nothing."""
        online = {node.node_id: label(node.node_id, node.name) for node in nodes}
        earlier, self._online = self._online, set(online)
        looked, self._looked = self._looked, time.time()
        known = set(self._labels)
        self._labels |= online
        if earlier is None:
            return
        for node_id in self._online & self._left.keys():
            del self._left[node_id]
        for node_id in sorted(earlier - self._online):
            self._left[node_id] = looked
            logger.warning("%s is offline: %s", self._labels[node_id], self._count())
        for node_id in sorted(self._online - earlier):
            returned = "back" if node_id in known else "there"
            logger.warning("%s is %s: %s", self._labels[node_id], returned, self._count())

    def last_seen(self, node_id: int) -> float | None:
        """Return when a look last found a node, in seconds since 1970; ``None``: none did."""
        return self._looked if node_id in (self._online or ()) else self._left.get(node_id)

    def waiting(self, node_ids: Iterable[int], seconds: float) -> None:
        """Log who has not answered for so long."""
        missing = [self._labels.get(node_id) or label(node_id) for node_id in node_ids]
        logger.info("%.0f s: waiting for %s; %s", seconds, enumerated(missing), self._count())

    def _count(self) -> str:
        return f"{len(self._online or ())} of {len(self._labels)} online"


def label(node_id: int, name: str = "") -> str:
    """Return how messages name a node."""
    return ClientNode(UNKNOWN_PARTITION, node_id, name=name).label


def enumerated(names: Iterable[str]) -> str:
    """Return names with commas, and how many more there are beyond the first ten."""
    ordered = sorted(names)
    more = len(ordered) - _MOST_NAMES
    return ", ".join(ordered[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
