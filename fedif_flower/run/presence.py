"""Who is there and who is not: what becomes of members that a round does not ask."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.server.record import Round
from fedif_flower.server.roster import NodeDirectory

# A member that is there is asked, or can be; it is offline; its registration ended; it is paused
# after errors; a callback, such as a quarantine, does not admit it.
Presence = Literal["there", "offline", "revoked", "paused", "not admitted"]


@dataclass(frozen=True)
class Change:
    """What a member is from a round on.

    ``at`` says since when, in seconds since 1970: of one that is gone, when it was last seen, and
    ``None`` where nobody knows.
    """

    node: ClientNode
    presence: Presence
    at: float | None

    def line(self, server_round: int) -> dict[str, Any]:
        """Return its line of ``attendance.csv``, by column; ``at`` is in UTC, or empty."""
        ids = {"partition_id": self.node.partition_id, "client_id": self.node.client_id}
        at = "" if self.at is None else f"{datetime.fromtimestamp(self.at, UTC):%F %T}"
        return {"round": server_round, **ids, "presence": self.presence, "at": at}


class RollCall:
    """Notes which members are there when a round begins, and tells what changed.

    That a simulated member is there is not told: there are as many as the run has clients.
    """

    def __init__(self) -> None:
        self._online: Sequence[ClientNode] = ()
        self._there: dict[int, ClientNode] = {}
        self._gone: set[int] = set()
        self._held: dict[int, tuple[ClientNode, Presence]] = {}
        self._called: float | None = None

    def call(self, current: Round, directory: NodeDirectory) -> list[Change]:
        """Return what changed since the last call.

        ``directory`` knows who was ever seen; it is asked where others are online than before.
        """
        now, online = time.time(), current.online
        changes = self._look(current, directory, now) if online is not self._online else []
        held: dict[int, tuple[ClientNode, Presence]] = {}
        if len(current.candidates) + len(current.at_work) < len(online):
            busy = {node.client_id for node in (*current.candidates, *current.at_work)}
            for node in online:
                if node.client_id not in busy:
                    paused = node.client_id in current.paused
                    held[node.client_id] = node, "paused" if paused else "not admitted"
        for client_id, (node, presence) in held.items():
            if self._held.get(client_id, (node, "there"))[1] != presence:
                changes.append(Change(node, presence, now))
        for client_id, (node, _) in self._held.items():
            if client_id not in held and client_id not in self._gone:
                changes.append(Change(node, "there", now))
        self._held, self._called = held, now
        return changes

    def _look(self, current: Round, directory: NodeDirectory, now: float) -> list[Change]:
        online, grid = current.online, current.grid
        there = {node.client_id: node for node in online if not node.is_simulated}
        absent = [n for n in directory.known if not n.is_simulated and n.client_id not in there]
        new = [node for node in absent if node.client_id not in self._gone]
        watching = grid.polling if isinstance(grid, ScreenedGrid) else None
        ended = set[int]()
        if watching and new:
            ended = watching.unregistered(node.node_id for node in new)
        changes = []
        for node in new:
            presence: Presence = "revoked" if node.node_id in ended else "offline"
            seen = watching.last_seen(node.node_id) if watching else None
            if seen is None and node.client_id in self._there:
                seen = self._called
            changes.append(Change(node, presence, seen))
        came = [node for client_id, node in there.items() if client_id not in self._there]
        changes += [Change(node, "there", now) for node in came]
        self._gone = (self._gone - there.keys()) | {node.client_id for node in new}
        self._online, self._there = online, there
        return changes
