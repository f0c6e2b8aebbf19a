"""What a run's records say about it: how far it is, when it may end, how each member fares."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ValidationError

from fedif_consortium.watch.reader import MemberTotals, Records
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_node import called
from fedif_flower.run.live_state import SECONDS_PER_SIGN
from fedif_flower.run.rows import headline

RunState = Literal["running", "finished", "stopped", "failed"]
# In the order in which a page lists them: who needs attention comes first.
MemberState = Literal[
    "refused", "failed", "away", "quarantined", "revoked", "paused", "offline", "late",
    "training", "answered", "idle",
]  # fmt: skip
STATE_WORDS: dict[MemberState, str] = {
    "refused": "its last reply was refused",
    "failed": "its app raised an error",
    "away": "asked, and no reply came",
    "quarantined": "left out: its updates raised the loss",
    "revoked": "its registration has ended",
    "paused": "left out for a while after errors",
    "offline": "not connected when the round began",
    "late": "still at work for an earlier round",
    "training": "asked, its reply is awaited",
    "answered": "its reply to this round is here",
    "idle": "not asked in this round",
}
STATES: tuple[MemberState, ...] = tuple(STATE_WORDS)
NEED_ATTENTION: tuple[MemberState, ...] = STATES[: STATES.index("late")]
LATEST_ROUNDS = 20  # By which the time of those to come is estimated.
SILENCE = 6 * SECONDS_PER_SIGN  # Without a sign of life, a run has stopped.


class AskedNode(BaseModel):
    """A member as ``state.json`` names it."""

    client_id: int
    partition_id: int
    name: str = ""


class Live(BaseModel):
    """What ``state.json`` says (see :class:`~fedif_flower.run.live_state.LiveState`)."""

    time: float
    phase: str = ""
    started: float = 0.0
    reason: str = ""
    round: int = 0
    since: float = 0.0
    num_asked: int = 0
    num_answered: int = 0
    num_online: int = 0
    asked: list[AskedNode] = []
    answered: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    at_work: list[AskedNode] = []
    paused: frozenset[int] = frozenset()
    online: frozenset[int] | None = None

    @cached_property
    def asked_ids(self) -> frozenset[int]:
        """Who was asked in the present round."""
        return frozenset(node.client_id for node in self.asked)

    @cached_property
    def at_work_ids(self) -> frozenset[int]:
        """Who is at work for an earlier round."""
        return frozenset(node.client_id for node in self.at_work)


@dataclass(frozen=True)
class Point:
    """A line of ``rounds.csv``; ``seconds`` are those of the whole round."""

    round: int
    figures: Mapping[str, float]
    seconds: float
    accepted: int
    rejected: int
    failed: int
    round_failed: bool
    reason: str

    @property
    def asked(self) -> int:
        """How many members were asked."""
        return self.accepted + self.rejected + self.failed


@dataclass(frozen=True)
class WatchedMember:
    """A member as an operator sees it."""

    totals: MemberTotals
    label: str
    state: MemberState
    share: float | None  # Of all weight given so far.
    until: int = 0  # The round in which it may be drawn again.

    @property
    def id(self) -> int:
        """Its client id."""
        return self.totals.client_id


@dataclass(frozen=True)
class Watched:
    """A run as an operator sees it, at a moment.

    Attributes
    ----------
    records : Records
        What its folder says.
    now : float
        The moment, in seconds since 1970.
    """

    records: Records
    now: float

    @cached_property
    def live(self) -> Live | None:
        """What the run is doing; ``None``: there is no ``state.json``.

        Raises
        ------
        ConfigError
            If the file is not what a run writes.
        """
        try:
            return Live(**self.records.live) if self.records.live else None
        except ValidationError as error:
            raise ConfigError(f"state.json is not what a run writes: {error}") from error

    @cached_property
    def points(self) -> list[Point]:
        """The rounds so far, the untrained model first."""
        return [_point(row) for row in self.records.rounds]

    @property
    def last_round(self) -> int:
        """The last complete round."""
        return self.points[-1].round if self.points else 0

    @property
    def num_rounds(self) -> int:
        """How many rounds there are to be; without a run config, those that there are."""
        found = self.records.config.get("num-server-rounds")
        return found if isinstance(found, int) and found > 0 else self.last_round

    @cached_property
    def last_sign(self) -> float:
        """When the run last wrote anything, in seconds since 1970."""
        return max(self.live.time if self.live else 0.0, self.records.changed)

    @cached_property
    def state(self) -> RunState:
        """Whether it goes on.

        A run is running while it gives signs of life: its ``state.json`` is younger than
        :data:`SILENCE`; without that file, its tables are younger than that and three rounds. One
        that wrote nothing is about to begin.
        """
        live = self.live
        if self.records.summary:
            return "failed" if self.records.summary.get("last_round_failed") else "finished"
        if live is not None and live.phase in ("finished", "stopped", "failed"):
            return "failed" if live.phase == "failed" else "stopped"
        if not self.last_sign:
            return "running"  # It is about to begin.
        patience = SILENCE if live else max(SILENCE, 3 * (self.seconds_per_round or 0.0))
        return "running" if self.now - self.last_sign < patience else "stopped"

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self.state == "running"

    @cached_property
    def seconds_per_round(self) -> float | None:
        """The mean of the last rounds; ``None``: none is over."""
        seconds = [point.seconds for point in self.points if point.round][-LATEST_ROUNDS:]
        return statistics.fmean(seconds) if seconds else None

    @cached_property
    def end(self) -> float | None:
        """When a running run may end, by its last rounds, in seconds since 1970."""
        if not self.is_running or self.seconds_per_round is None:
            return None
        left = (self.num_rounds - self.last_round) * self.seconds_per_round
        begun = self.live.since if self.live and self.live.round > self.last_round else self.now
        # A round that takes longer than usual may end any time.
        return max(min(begun, self.now) + left, self.now)

    @cached_property
    def figure(self) -> str:
        """The last figure of the test split, in words."""
        usual = {"test_accuracy": None, "test_loss": None}
        shown = (headline({**usual, **point.figures}) for point in reversed(self.points))
        return next(filter(None, shown), "")

    def series(self, name: str) -> list[tuple[int, float]]:
        """Return a figure over the rounds in which it was measured."""
        return [(p.round, p.figures[name]) for p in self.points if name in p.figures]

    @cached_property
    def measures(self) -> dict[str, list[str]]:
        """What is measured, by its name: the columns of both splits."""
        found: dict[str, list[str]] = {}
        for name in dict.fromkeys(name for point in self.points for name in point.figures):
            split, _, measure = name.partition("_")
            if split in ("test", "validation"):
                found.setdefault(measure.replace("_", " "), []).append(name)
        return found

    @cached_property
    def members(self) -> list[WatchedMember]:
        """Everybody known, who needs attention first."""
        known = dict(self.records.members)
        named = [*self.live.asked, *self.live.at_work] if self.live else []
        asked = {node.client_id: node for node in named}
        for client_id, node in asked.items():
            known.setdefault(client_id, MemberTotals(client_id, node.partition_id))
        total = math.fsum(member.weight for member in known.values())
        weighed = total > 0 and math.isfinite(total)
        found = [
            WatchedMember(
                totals,
                self.records.names.get(client_id) or _label(totals, asked.get(client_id)),
                self._state_of(totals),
                totals.weight / total if weighed else None,
                self._until.get(client_id, 0),
            )
            for client_id, totals in known.items()
        ]
        return sorted(
            found,
            key=lambda m: (STATES.index(m.state), -m.totals.misses, m.totals.partition_id, m.id),
        )

    def count(self, *states: MemberState) -> int:
        """Return how many members are in one of these states."""
        return sum(member.state in states for member in self.members)

    @cached_property
    def _until(self) -> dict[int, int]:
        """The first round after each member's last quarantine."""
        return {found.client_id: found.until_round for found in self.records.quarantine}

    def _state_of(self, member: MemberTotals) -> MemberState:
        """Return what becomes of a member in the present round, else what became of it."""
        live, client_id = self.live if self.is_running else None, member.client_id
        if live is not None:
            if live.phase == "training" and client_id in live.asked_ids:
                if client_id in live.failed:
                    return "failed"
                return "answered" if client_id in live.answered else "training"
            if client_id in live.at_work_ids and client_id not in live.answered:
                return "late"
        if member.last_status == "revoked":
            return "revoked"
        if self._until.get(client_id, 0) > max(self.last_round, live.round if live else 0):
            return "quarantined"
        if live is not None and client_id in live.paused:
            return "paused"
        if live is not None and live.online is not None and client_id not in live.online:
            return "offline"
        if member.last_status is None or member.last_status == "accepted":
            newest = member.last_round == self.last_round and member.last_round
            return "answered" if newest else "idle"
        return member.last_status


def _label(member: MemberTotals, node: AskedNode | None) -> str:
    """Return how a member is called that the records give no name."""
    return called(member.client_id, member.partition_id, node.name if node else "")


def _point(row: Mapping[str, str]) -> Point:
    try:
        return Point(
            round=int(row["round"]),
            figures={
                name: float(text)
                for name, text in row.items()
                if name.startswith(("test_", "validation_")) and text
            },
            seconds=math.fsum(
                float(row.get(name) or 0.0)
                for name in ("round_seconds", "aggregation_seconds", "evaluation_seconds")
            ),
            **{n: int(row.get(n) or 0) for n in ("accepted", "rejected", "failed")},
            round_failed=row.get("round_failed") == "1",
            reason=row.get("reason", ""),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(f"rounds.csv cannot be read: {error!r}") from error
