"""What a run's folder says about it: how far it is, when it may end, how each member fares."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from pydantic import BaseModel

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import refused_as
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, called
from fedif_flower.run.folder import RunFolder, Table
from fedif_flower.run.live_state import SECONDS_PER_SIGN
from fedif_flower.run.rows import Line, read_table
from fedif_flower.server.record import headline

# In the order in which a page lists them: who needs a look comes first.
STATE_WORDS = {
    "refused": "its last reply was refused",
    "failed": "its app raised an error",
    "away": "asked, and no reply came",
    "quarantined": "left out: its updates raised the loss",
    "revoked": "its registration has ended",
    "paused": "left out for a while after errors",
    "offline": "not connected when the round began",
    "late": "at work for an earlier round",
    "training": "asked, its reply is awaited",
    "answered": "its reply to this round is here",
    "accepted": "its last reply counted",
    "new": "never asked",
}
STATES = tuple(STATE_WORDS)
NEED_ATTENTION = STATES[: STATES.index("late")]
LATEST_ROUNDS = 20  # By which the time of those to come is estimated.
SILENCE = 6 * SECONDS_PER_SIGN  # Without a sign of life, a run has stopped.
_SECONDS = ("round_seconds", "aggregation_seconds", "evaluation_seconds")
_ROUNDS = dict.fromkeys(_SECONDS, "double") | dict.fromkeys(
    ("round", "accepted", "rejected", "failed", "round_failed"), "int64"
)
# Columns of tables with their type, and how a client's lines are summed up.
_LINES = {
    "status": ("string", "list"),
    "rejection": ("string", "last"),
    "partition_id": ("int64", "last"),
    "malicious": ("int64", "last"),
    "weight": ("double", "sum"),
    "weight_score": ("double", "last"),
}


class WatchedMember(BaseModel):
    """A member as an operator sees it; ``state.json`` says what its first three fields are.

    ``status`` is what became of it in each of its rounds, ``rejection`` why the last one that did
    not count did not, ``share`` of all weight given so far.
    """

    client_id: int
    partition_id: int = UNKNOWN_PARTITION
    name: str = ""
    state: str = "new"
    status: list[str] = []
    rejection: str | None = None
    malicious: bool | None = None
    weight: float | None = None
    share: float | None = None
    weight_score: float | None = None
    contribution: float | None = None

    @property
    def label(self) -> str:
        """What it is called."""
        return called(self.client_id, self.partition_id, self.name)

    @property
    def misses(self) -> int:
        """The rounds that it was asked in since its last accepted reply."""
        latest = self.status[::-1]
        return latest.index("accepted") if "accepted" in latest else len(latest)


class Live(BaseModel):
    """What ``state.json`` says (see :class:`~fedif_flower.run.live_state.LiveState`)."""

    time: float = 0.0
    phase: str = ""
    reason: str = ""
    round: int = 0
    since: float = 0.0
    num_asked: int = 0
    num_answered: int = 0
    asked: list[WatchedMember] = []
    at_work: list[WatchedMember] = []
    answered: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    paused: frozenset[int] = frozenset()
    online: frozenset[int] | None = None


class Watched:
    """A run as an operator sees it, at a moment; its tables may be growing.

    Parameters
    ----------
    folder : RunFolder
        Of the run.
    now : float, optional
        The moment, in seconds since 1970; default: this one.

    Raises
    ------
    ConfigError
        Also when an attribute is read: if a file is not what a run writes, naming it.
    """

    def __init__(self, folder: RunFolder, now: float | None = None) -> None:
        self.folder, self.now = folder, time.time() if now is None else now
        files = (folder.config, folder.summary, folder.live)
        self.config, self.summary, live = (f.read() if f.path.exists() else {} for f in files)
        with refused_as(ConfigError, f"{folder.live.path} is not what a run writes"):
            self.live = Live(**live)
        with refused_as(ConfigError, f"{folder.rounds.path} is not what a run writes"):
            self.rounds: list[Line] = read_table(folder.rounds.path, _ROUNDS, more=True).to_pylist()
            self.last_round: int = self.rounds[-1]["round"] if self.rounds else 0
        tables = (folder.rounds.path, folder.clients.path)
        changes = (path.stat().st_mtime for path in tables if path.exists())
        self.last_sign = max(self.live.time, *changes)

    @property
    def num_rounds(self) -> int:
        """How many rounds there are to be; without a run config, those that there are."""
        found = self.config.get("num-server-rounds")
        return found if isinstance(found, int) and found > 0 else self.last_round

    @cached_property
    def state(self) -> Literal["running", "finished", "stopped", "failed"]:
        """Whether it goes on: it does while it gives signs of life, or is about to begin."""
        if self.summary:
            return "failed" if self.summary.get("last_round_failed") else "finished"
        if self.live.phase in ("finished", "stopped", "failed"):
            return "failed" if self.live.phase == "failed" else "stopped"
        # Without state.json only its tables tell, once a round.
        patience = SILENCE if self.live.time else max(SILENCE, 3 * (self.seconds_per_round or 0.0))
        silent = self.last_sign and self.now - self.last_sign >= patience
        return "stopped" if silent else "running"

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self.state == "running"

    @cached_property
    def seconds_per_round(self) -> float | None:
        """The mean of the last rounds; ``None``: none is over."""
        found = [seconds_of(row) for row in self.rounds if row["round"]][-LATEST_ROUNDS:]
        return statistics.fmean(found) if found else None

    @property
    def end(self) -> float | None:
        """When a running run may end, by its last rounds, in seconds since 1970."""
        if not self.is_running or self.seconds_per_round is None:
            return None
        left = (self.num_rounds - self.last_round) * self.seconds_per_round
        begun = self.live.since if self.live.round > self.last_round else self.now
        # A round that takes longer than usual may end any time.
        return max(min(begun, self.now) + left, self.now)

    @property
    def figure(self) -> str:
        """The last figure of the test split, in words."""
        return next(filter(None, map(headline, reversed(self.rounds))), "")

    @cached_property
    def members(self) -> list[WatchedMember]:
        """Everybody known, who needs a look first."""
        lines = _by_client(self.folder.clients, _LINES)
        credit = _by_client(self.folder.attribution, {"contribution": ("double", "sum")})
        names = _by_client(self.folder.names, {"name": ("string", "last")})
        nodes = {node.client_id: node for node in (*self.live.asked, *self.live.at_work)}
        found = []
        with refused_as(ConfigError, f"{self.folder.clients.path} is not what a run writes"):
            states = self._states({i: line["status"][-1] for i, line in lines.items()})
            weight = math.fsum(line["weight"] or 0.0 for line in lines.values())
            for i in dict.fromkeys([*lines, *nodes]):
                own = dict(nodes.get(i, WatchedMember(client_id=i)))
                for known in (lines, names, credit):
                    own |= known.get(i, {})
                share = (own["weight"] or 0.0) / weight if 0 < weight < 1e30 else None
                own |= {"state": states.get(i, "new"), "share": share}
                found.append(WatchedMember(**own))
            return sorted(found, key=lambda m: (STATES.index(m.state), -m.misses, m.label))

    def _states(self, last: Mapping[int, str]) -> dict[int, str]:
        """Return what becomes of members in the present round, else their last status."""
        live, present = self.live, max(self.last_round, self.live.round)
        decisions = _by_client(self.folder.quarantine, {"until_round": ("int64", "last")})
        asked = {node.client_id for node in live.asked if live.phase == "training"}
        late = {node.client_id for node in live.at_work} - live.answered
        left_out = {
            **{i: "quarantined" for i, own in decisions.items() if own["until_round"] > present},
            **{i: status for i, status in last.items() if status == "revoked"},
        }
        if not self.is_running:
            return {**last, **left_out}
        # What comes later says more.
        return {
            **last,
            **dict.fromkeys(() if live.online is None else last.keys() - live.online, "offline"),
            **dict.fromkeys(live.paused, "paused"),
            **left_out,
            **dict.fromkeys(late, "late"),
            **dict.fromkeys(asked, "training"),
            **dict.fromkeys(asked & live.answered, "answered"),
            **dict.fromkeys(asked & live.failed, "failed"),
        }


def seconds_of(row: Line) -> float:
    """Return how long a whole round took."""
    return math.fsum(row.get(name) or 0.0 for name in _SECONDS)


def _by_client(table: Table, columns: Mapping[str, tuple[str, str]]) -> dict[int, Line]:
    """Return columns of a table, each client's lines summed up as its type and sum say."""
    types = {"client_id": "uint64", **{name: kind for name, (kind, _) in columns.items()}}
    grouped = read_table(table.path, types).group_by("client_id", use_threads=False)
    totals = grouped.aggregate([(name, how) for name, (_, how) in columns.items()]).to_pylist()
    return {
        row["client_id"]: {name: row[f"{name}_{how}"] for name, (_, how) in columns.items()}
        for row in totals
    }
