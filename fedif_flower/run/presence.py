"""Attendance: which members are online as a round begins, and which of them cannot be asked."""

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

# What a member is: it can be asked; it is offline; its registration has ended; it is paused after
# errors; a callback, such as a quarantine, does not admit it.
Presence = Literal["there", "offline", "revoked", "paused", "not admitted"]

# How often offline members are looked up, to see whether they are still registered. That is rare,
# since the SuperLink keeps each question.
_LOOK_UP_SECONDS = 60.0
_MOST_LOOKED_UP = 100  # Members in one look-up.


@dataclass(frozen=True)
class Change:
    """A change in a member's presence.

    Attributes
    ----------
    node : ClientNode
        The member.
    presence : str
        What the member is from now on (see :data:`Presence`).
    at : float, optional
        Since when, in Unix seconds. For a member that is offline or not registered any more: when
        it was last seen; ``None``: that is not known.
    """

    node: ClientNode
    presence: Presence
    at: float | None

    def line(self, server_round: int) -> dict[str, Any]:
        """Return the change's line of ``attendance.csv``, by column; ``at`` is in UTC, or empty."""
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
    """Notes which members are online when a round begins, and returns what changed.

    Simulated members are always online: for them, a change is that one is paused or not admitted,
    or that it may be asked again.
    """

    def __init__(self) -> None:
        self._online: Sequence[ClientNode] = ()  # The nodes online in the last round.
        self._there: dict[int, ClientNode] = {}  # Those of them that are real, by client id.
        self._offline: dict[int, ClientNode] = {}  # In the order in which they are looked up next.
        self._revoked: set[int] = set()  # Client ids.
        self._looked_up_at = -math.inf  # By time.monotonic.
        self._barred: dict[int, tuple[ClientNode, Presence]] = {}  # Online, but not to be asked.
        self._called_at: float | None = None  # When the last round began, in Unix seconds.

    def go_on(self, lines: Iterable[Mapping[str, Any]], *, is_simulated: bool) -> None:
        """Take over what members were, by the lines of ``attendance.csv`` so far.

        Afterwards only changes against these lines are returned. Lines of simulated members count,
        too: otherwise a member that was kept away, and is not any more, would get no line that says
        so, and would count as kept away to the end of the run.
        """
        for line in lines:
            node = ClientNode(line["partition_id"], line["client_id"], is_simulated=is_simulated)
            self._note(node, line["presence"])

    def _note(self, node: ClientNode, presence: Presence) -> None:
        """Take over what a line says about a member."""
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
        """Note that a member is gone: offline, or not registered any more."""
        if presence == "revoked":
            self._revoked.add(node.client_id)
        else:
            self._offline[node.client_id] = node

    def _is_gone(self, client_id: int) -> bool:
        """Whether a member was gone when the last round began, as far as was known."""
        return client_id in self._offline or client_id in self._revoked

    def call(self, current: Round, directory: NodeDirectory) -> list[Change]:
        """Return what changed since the last call, as a round begins.

        Parameters
        ----------
        current : Round
            The round, which knows who is online and who may be drawn.
        directory : NodeDirectory
            It knows every node that was ever seen.
        """
        now = time.time()
        changes = self._revoked_meanwhile(current.grid)
        # If nobody came or left, the directory returns the very same list as in the last round.
        if current.online is not self._online:
            changes += self._come_and_gone(current, directory, now)
        changes += self._barred_and_back(_barred(current), now)
        self._called_at = now
        return changes

    def _barred_and_back(
        self, barred: dict[int, tuple[ClientNode, Presence]], now: float
    ) -> list[Change]:
        """Return which members may not be asked any more, why, and which ones may be again.

        ``barred`` are those that are online now and may not be asked. A reason that changed counts.
        """
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
        """Return which real members have left, and which ones have come."""
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
        """Return whether members that left are still registered, and when they were last seen."""
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
        """Return members whose registration ended while they were offline.

        The list of nodes online does not show this, so some members are looked up once a minute.
        Later rounds are no turns of a member that is not registered: they do not count as missed.
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
            # Added anew, a member that is still registered is the last one to be looked up again.
            self._note_departure(node, presence)
            if presence == "revoked":
                changes.append(Change(node, presence, polling.last_seen(node.node_id)))
        return changes


def _polling(grid: Grid | None) -> PollingGrid | None:
    """Return the grid that knows when real members were seen, and which are registered, if any."""
    if isinstance(grid, ScreenedGrid):
        return grid.polling
    return None


def _barred(current: Round) -> dict[int, tuple[ClientNode, Presence]]:
    """Return which members are online and may not be asked, by client id, and why."""
    if len(current.candidates) == len(current.online):
        return {}
    # Members at work are not barred, although they are no candidates.
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
