"""What a run's folder says about it: how far it is, when it may end, how each member fares."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_node import called
from fedif_flower.messages.screening import Status
from fedif_flower.run.folder import MEASURED, JsonFile, RunFolder
from fedif_flower.run.live_state import SECONDS_PER_SIGN
from fedif_flower.run.rows import Line, read_table
from fedif_flower.strategies.reports import headline

RunState = Literal["running", "finished", "stopped", "failed"]
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
_CLIENTS = {
    "partition_id": pa.int64(),
    "client_id": pa.uint64(),
    "malicious": pa.int64(),
    "weight_score": pa.float64(),
    "weight": pa.float64(),
    "status": pa.string(),
    "rejection": pa.string(),
}
_SECONDS = ("round_seconds", "aggregation_seconds", "evaluation_seconds")
_COUNTS = ("round", "accepted", "rejected", "failed", "evaluations")
_ROUNDS = {
    **dict.fromkeys((*_SECONDS, "train_seconds", *MEASURED), pa.float64()),
    **dict.fromkeys((*_COUNTS, "round_failed", "late", "online"), pa.int64()),
}
_ATTRIBUTION = {"client_id": pa.uint64(), "contribution": pa.float64()}


class LiveNode(BaseModel):
    """A member as ``state.json`` names it."""

    client_id: int
    partition_id: int
    name: str = ""


class Live(BaseModel):
    """What ``state.json`` says (see :class:`~fedif_flower.run.live_state.LiveState`)."""

    time: float
    phase: str = ""
    reason: str = ""
    round: int = 0
    since: float = 0.0
    num_asked: int = 0
    num_answered: int = 0
    asked: list[LiveNode] = []
    answered: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    at_work: list[LiveNode] = []
    paused: frozenset[int] = frozenset()
    online: frozenset[int] | None = None


@dataclass(frozen=True)
class WatchedMember:
    """A member as an operator sees it.

    ``misses`` are the rounds that it was asked in since its last accepted reply, ``reason`` why
    the last one of them did not count, ``share`` is of all weight given so far.
    """

    id: int
    label: str
    state: str
    asked: int = 0
    accepted: int = 0
    misses: int = 0
    last_status: str = ""
    reason: str = ""
    share: float | None = None
    weight_score: float | None = None
    contribution: float | None = None
    malicious: bool = False


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
        self.config, self.summary = _object(folder.config), _object(folder.summary)
        live = _object(folder.live)
        try:
            self.live = Live(**live) if live else None
            self.rounds: list[dict[str, Any]] = read_table(
                folder.rounds.path, _ROUNDS, more=True
            ).to_pylist()
            for row in self.rounds:
                row.update((name, 0) for name in _COUNTS if row[name] is None)
        except (ValidationError, KeyError, TypeError, ValueError) as error:
            where = folder.live if isinstance(error, ValidationError) else folder.rounds
            raise ConfigError(f"{where.path} is not what a run writes: {error!r}") from error
        times = [_changed(folder.rounds.path), _changed(folder.clients.path)]
        self.last_sign = max(*times, self.live.time if self.live else 0.0)

    @property
    def last_round(self) -> int:
        """The last complete round."""
        return self.rounds[-1]["round"] if self.rounds else 0

    @property
    def num_rounds(self) -> int:
        """How many rounds there are to be; without a run config, those that there are."""
        found = self.config.get("num-server-rounds")
        return found if isinstance(found, int) and found > 0 else self.last_round

    @cached_property
    def state(self) -> RunState:
        """Whether it goes on: it does while it gives signs of life, or is about to begin."""
        if self.summary:
            return "failed" if self.summary.get("last_round_failed") else "finished"
        if self.live and self.live.phase in ("finished", "stopped", "failed"):
            return "failed" if self.live.phase == "failed" else "stopped"
        # Without state.json only its tables tell, once a round.
        patience = SILENCE if self.live else max(SILENCE, 3 * (self.seconds_per_round or 0.0))
        silent = self.last_sign and self.now - self.last_sign >= patience
        return "stopped" if silent else "running"

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self.state == "running"

    @property
    def training(self) -> Live | None:
        """What a running run is doing."""
        return self.live if self.is_running else None

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
        begun = self.live.since if self.live and self.live.round > self.last_round else self.now
        # A round that takes longer than usual may end any time.
        return max(min(begun, self.now) + left, self.now)

    @property
    def figure(self) -> str:
        """The last figure of the test split, in words."""
        return next(filter(None, map(headline, reversed(self.rounds))), "")

    @cached_property
    def members(self) -> list[WatchedMember]:
        """Everybody known, who needs a look first."""
        lines = read_table(self.folder.clients.path, _CLIENTS)
        totals = lines.group_by("client_id", use_threads=False).aggregate(
            [
                *(("status", "list"), ("weight", "sum"), ("rejection", "last")),
                *(("weight_score", "last"), ("partition_id", "last"), ("malicious", "last")),
            ]
        )
        known = {line["client_id"]: line for line in totals.to_pylist()}
        parts = read_table(self.folder.attribution.path, _ATTRIBUTION)
        sums = parts.group_by("client_id").aggregate([("contribution", "sum")])
        contributed = {row["client_id"]: row["contribution_sum"] for row in sums.to_pylist()}
        named = [*self.live.asked, *self.live.at_work] if self.live else []
        nodes = {node.client_id: node for node in named}
        texts = {"client_id": pa.uint64(), "name": pa.string()}
        lines = read_table(self.folder.names.path, texts).to_pylist()
        names = {line["client_id"]: line["name"] for line in lines}
        weight = math.fsum(line["weight_sum"] or 0.0 for line in known.values())
        ids = list(dict.fromkeys([*known, *nodes, *contributed]))
        past = {i: known[i]["status_list"] if i in known else [] for i in ids}
        states, found = self._states(past), []
        for i in ids:
            line, node, statuses = known.get(i, {}), nodes.get(i), past[i]
            counted = [number for number, s in enumerate(statuses, 1) if s == "accepted"]
            partition = node.partition_id if node else -1
            own = called(i, line.get("partition_id_last", partition), node.name if node else "")
            found.append(
                WatchedMember(
                    id=i,
                    label=names.get(i) or own,
                    state=states[i],
                    asked=len(statuses),
                    accepted=len(counted),
                    misses=len(statuses) - (counted[-1] if counted else 0),
                    last_status=statuses[-1] if statuses else "",
                    reason=line.get("rejection_last") or "",
                    share=(line.get("weight_sum") or 0.0) / weight if 0 < weight < 1e30 else None,
                    weight_score=line.get("weight_score_last"),
                    contribution=contributed.get(i),
                    malicious=bool(line.get("malicious_last")),
                )
            )
        return sorted(found, key=lambda m: (STATES.index(m.state), -m.misses, m.label))

    def _states(self, past: Mapping[int, Sequence[str]]) -> dict[int, str]:
        """Return what becomes of members in the present round, else what became of them."""
        last = {i: statuses[-1] if statuses else "new" for i, statuses in past.items()}
        if strange := set(last.values()) - {"new", *get_args(Status)}:
            raise ConfigError(f"{self.folder.clients.path}: status = {strange.pop()!r}")
        whom = {"client_id": pa.uint64(), "until_round": pa.int64()}
        lines = read_table(self.folder.quarantine.path, whom).to_pylist()
        until = {line["client_id"]: line["until_round"] for line in lines}
        present = max(self.last_round, self.live.round if self.live else 0)
        revoked = [i for i, status in last.items() if status == "revoked"]
        left_out = dict.fromkeys((i for i, end in until.items() if end > present), "quarantined")
        left_out |= dict.fromkeys(revoked, "revoked")
        live = self.training
        if live is None:
            return last | left_out
        asked = [n.client_id for n in live.asked] if live.phase == "training" else []
        # What comes later says more.
        return {
            **last,
            **dict.fromkeys(() if live.online is None else last.keys() - live.online, "offline"),
            **dict.fromkeys(live.paused, "paused"),
            **left_out,
            **dict.fromkeys({n.client_id for n in live.at_work} - live.answered, "late"),
            **dict.fromkeys(asked, "training"),
            **dict.fromkeys(live.answered.intersection(asked), "answered"),
            **dict.fromkeys(live.failed.intersection(asked), "failed"),
        }


def seconds_of(row: Line) -> float:
    """Return how long a whole round took."""
    return math.fsum(row.get(name) or 0.0 for name in _SECONDS)


def _object(file: JsonFile) -> Mapping[str, Any]:
    try:
        return file.read()
    except FileNotFoundError:
        return {}


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
