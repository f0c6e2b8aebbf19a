"""Who is there and who is not: what becomes of members that a round does not ask."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal

from flwr.serverapp import Grid

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.polling_grid import PollingGrid
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.server.record import Round
from fedif_flower.server.roster import NodeDirectory

# A member that is there is asked, or can be; it is offline; its registration ended; it is paused
# after errors; a callback, such as a quarantine, does not admit it.
Presence = Literal["there", "offline", "revoked", "paused", "not admitted"]

# Whether members that are offline are still registered: each question stays in the SuperLink.
_LOOK_UP_SECONDS = 60.0
_MOST_LOOKED_UP = 100  # At a time.


@dataclass(frozen=True)
class Change:
    """What a member is from a round on.

    ``at`` says since when, in seconds since 1970. For a member that is gone it is when it was last
    seen, and ``None`` where nobody knows.
    """

    node: ClientNode
    presence: Presence
    at: float | None

    def line(self, server_round: int) -> dict[str, Any]:
        """Return its line of ``attendance.csv``, by column; ``at`` is in UTC, or empty."""
        at = ""
        if self.at is not None:
            at = f"{datetime.fromtimestamp(self.at, UTC):%F %T}"
        return {
            "round": server_round,
            "partition_id": self.node.partition_id,
            "client_id": self.node.client_id,
            "presence": self.presence,
            "at": at,
        }


class RollCall:
    """Notes which members are there when a round begins, and tells what changed.

    That a simulated member is there is not told: there are as many as the run has clients.
    """

    def __init__(self) -> None:
        self._online: Sequence[ClientNode] = ()
        self._there: dict[int, ClientNode] = {}  # Online and real, by client id.
        self._offline: dict[int, ClientNode] = {}  # Who is to be looked up first comes first.
        self._revoked: set[int] = set()
        self._looked_up_at = -math.inf  # By time.monotonic.
        self._barred: dict[int, tuple[ClientNode, Presence]] = {}  # Online, but not to be asked.
        self._called_at: float | None = None

    def go_on(self, lines: Iterable[Mapping[str, Any]], *, is_simulated: bool) -> None:
        """Know what members were by the lines of ``attendance.csv`` so far: no change is no news.

        Nobody tells that simulated members are there: what kept one away would hold to the end of
        the run.
        """
        for line in lines:
            node = ClientNode(line["partition_id"], line["client_id"], is_simulated=is_simulated)
            self._note(node, line["presence"])

    def _note(self, node: ClientNode, presence: Presence) -> None:
        """Take note of what a member is, as it was told already."""
        client_id = node.client_id
        self._barred.pop(client_id, None)
        self._offline.pop(client_id, None)
        self._revoked.discard(client_id)
        if presence in ("paused", "not admitted"):
            self._barred[client_id] = (node, presence)
        elif presence == "there":
            self._there[client_id] = node
        else:
            self._there.pop(client_id, None)
            self._note_departure(node, presence)

    def _note_departure(self, node: ClientNode, presence: Presence) -> None:
        """Take note that a member is gone: offline, or not registered any more."""
        if presence == "revoked":
            self._revoked.add(node.client_id)
        else:
            self._offline[node.client_id] = node

    def _is_gone(self, client_id: int) -> bool:
        """Tell whether a member was known to be gone as the last round began."""
        return client_id in self._offline or client_id in self._revoked

    def call(self, current: Round, directory: NodeDirectory) -> list[Change]:
        """Return what changed since the last call.

        ``directory`` knows who was ever seen; it is asked where others are online than before.
        """
        now = time.time()
        changes = self._revoked_meanwhile(current.grid)
        # The same list, and not an equal one, stands for a round in which nobody came or left.
        if current.online is not self._online:
            changes += self._come_and_gone(current, directory, now)
        changes += self._barred_and_back(_barred(current), now)
        self._called_at = now
        return changes

    def _barred_and_back(
        self, barred: dict[int, tuple[ClientNode, Presence]], now: float
    ) -> list[Change]:
        """Return who is not to be asked any more, or for another reason, and who is again."""
        changes = []
        for client_id, (node, presence) in barred.items():
            before = self._barred.get(client_id)
            if before is None or before[1] != presence:
                changes.append(Change(node, presence, now))
        for client_id, (node, _) in self._barred.items():
            if client_id not in barred and not self._is_gone(client_id):
                changes.append(Change(node, "there", now))
        self._barred = barred
        return changes

    def _come_and_gone(self, current: Round, directory: NodeDirectory, now: float) -> list[Change]:
        """Return which real members are gone, and which ones came."""
        there = {node.client_id: node for node in current.online if not node.is_simulated}
        left = []
        for node in directory.known:
            is_absent = not node.is_simulated and node.client_id not in there
            if is_absent and not self._is_gone(node.client_id):
                left.append(node)
        changes = self._departures(left, current.grid)
        for client_id, node in there.items():
            if client_id not in self._there:
                changes.append(Change(node, "there", now))
            self._offline.pop(client_id, None)
        self._revoked -= there.keys()
        self._online = current.online
        self._there = there
        return changes

    def _departures(self, left: Sequence[ClientNode], grid: Grid | None) -> list[Change]:
        """Return how members left, and when they were last seen, as far as the grid knows."""
        polling = _polling(grid)
        unregistered = set[int]()
        if polling and left:
            unregistered = polling.unregistered(node.node_id for node in left)
        changes = []
        for node in left:
            presence: Presence = "revoked" if node.node_id in unregistered else "offline"
            seen_at = None
            if polling:
                seen_at = polling.last_seen(node.node_id)
            if seen_at is None and node.client_id in self._there:
                seen_at = self._called_at
            changes.append(Change(node, presence, seen_at))
            self._note_departure(node, presence)
        return changes

    def _revoked_meanwhile(self, grid: Grid | None) -> list[Change]:
        """Return whose registration ended while they were offline; look some up once a minute.

        No list of who is online shows it: from then on nobody counts on these members.
        """
        polling = _polling(grid)
        now = time.monotonic()
        if polling is None or not self._offline or now - self._looked_up_at < _LOOK_UP_SECONDS:
            return []
        self._looked_up_at = now
        looked_up = list(islice(self._offline.values(), _MOST_LOOKED_UP))
        unregistered = polling.unregistered(node.node_id for node in looked_up)
        changes = []
        for node in looked_up:
            del self._offline[node.client_id]
            presence: Presence = "revoked" if node.node_id in unregistered else "offline"
            self._note_departure(node, presence)  # It is the last one to be looked up again.
            if presence == "revoked":
                changes.append(Change(node, presence, polling.last_seen(node.node_id)))
        return changes


def _polling(grid: Grid | None) -> PollingGrid | None:
    """Return what knows when real members were seen and whether they are registered, if any."""
    if isinstance(grid, ScreenedGrid):
        return grid.polling
    return None


def _barred(current: Round) -> dict[int, tuple[ClientNode, Presence]]:
    """Return who is online and not to be asked, by client id, and why."""
    if len(current.candidates) == len(current.online):
        return {}
    # Who is at work may be offline by now.
    ids = {node.client_id for node in (*current.candidates, *current.at_work)}
    barred: dict[int, tuple[ClientNode, Presence]] = {}
    for node in current.online:
        if node.client_id in ids:
            continue
        if node.client_id in current.paused:
            barred[node.client_id] = (node, "paused")
        else:
            barred[node.client_id] = (node, "not admitted")
    return barred
