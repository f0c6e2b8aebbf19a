"""A run's state, read from its folder: its progress, its expected end, and each member's state."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import refused_as
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, called
from fedif_flower.run.correction import NOISE
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.held_out import WITNESS, last_contradicted
from fedif_flower.run.live_state import SECONDS_PER_SIGN
from fedif_flower.run.record_files import JsonFile, Table
from fedif_flower.run.rows import Line, read_table
from fedif_flower.run.secret_validation import PAYING_WITNESS, examined_key, witness_of
from fedif_flower.server.record import headline

# The states of a member, in words. The page lists members in this order: those that need a look
# come first.
STATE_WORDS = {
    "refused": "its last reply was refused",
    "failed": "its app raised an error",
    "away": "asked, and no reply came, or an error",
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
LATEST_ROUNDS = 20  # The mean of so many last rounds estimates how long the next rounds take.
SILENCE = 6 * SECONDS_PER_SIGN  # A run without a sign of life for so many seconds has stopped.
_SECONDS = ("round_seconds", "aggregation_seconds", "evaluation_seconds")
# Columns of rounds.csv with their types.
_ROUNDS = {
    "round_seconds": "double",
    "aggregation_seconds": "double",
    "evaluation_seconds": "double",
    "round": "int64",
    "accepted": "int64",
    "rejected": "int64",
    "failed": "int64",
    "round_failed": "int64",
    WITNESS: "double",
    PAYING_WITNESS: "double",
}
# Columns of clients.csv with their types, and how a client's lines become one value.
_LINES = {
    "status": ("string", "list"),
    "rejection": ("string", "last"),
    "partition_id": ("int64", "last"),
    "malicious": ("int64", "last"),
    "weight": ("double", "sum"),
    "weight_score": ("double", "last"),
    "asked_in": ("int64", "list"),
}


class WatchedMember(BaseModel):
    """A member as an operator sees it; its first three fields may come from ``state.json``.

    ``status`` and ``asked_in`` have one entry for each line of the member in ``clients.csv``.
    ``status`` says what became of the member or its reply. ``asked_in`` is the earlier round whose
    request a late reply answers, and ``None`` in all other lines. That earlier round has a line of
    its own, so a request is counted where ``asked_in`` is ``None``.

    ``rejection`` is the reason given in the last line that has one. ``share`` is the member's share
    of all weight so far.
    """

    client_id: int
    partition_id: int = UNKNOWN_PARTITION
    name: str = ""
    state: str = "new"
    status: list[str] = []
    asked_in: list[int | None] = []
    rejection: str | None = None
    malicious: bool | None = None
    weight: float | None = None
    share: float | None = None
    weight_score: float | None = None
    contribution: float | None = None

    @property
    def label(self) -> str:
        """What the member is called: its name, or words made from its ids."""
        return called(self.client_id, self.partition_id, self.name)

    @property
    def requests(self) -> int:
        """How often the member was asked."""
        return self.asked_in.count(None)

    @property
    def misses(self) -> int:
        """How often the member was asked since its last accepted reply."""
        misses = 0
        for status, asked_in in zip(reversed(self.status), reversed(self.asked_in), strict=True):
            if status == "accepted":
                break
            if asked_in is None:
                misses += 1
        return misses


class Live(BaseModel):
    """The content of ``state.json`` (see :class:`~fedif_flower.run.live_state.LiveState`)."""

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


def holds_run(folder: RunFolder) -> bool:
    """Return whether a folder is that of a run.

    Other measurements write a ``config.json`` too; only that of a run has ``run-name``.
    """
    if folder.rounds.path.is_file() or folder.live.path.is_file():
        return True
    if not folder.config.path.is_file():
        return False
    try:
        return "run-name" in folder.config.read()
    except ConfigError:
        return True  # The file is damaged. Whoever opens the run gets the error.


class Watched:
    """A run as an operator sees it at one moment; the run may still be writing its tables.

    Parameters
    ----------
    folder : RunFolder
        The run's folder.
    now : float, optional
        The moment, in seconds since 1970; default: the present.

    Raises
    ------
    ConfigError
        If a file is not what a run writes; the message names the file. Some files are read only
        when a property needs them, so reading a property may raise it too.
    """

    def __init__(self, folder: RunFolder, now: float | None = None) -> None:
        self.folder = folder
        if now is None:
            now = time.time()
        self.now = now
        self.config = _read(folder.config)
        self.summary = _read(folder.summary)
        live = _read(folder.live)
        with refused_as(ConfigError, f"{folder.live.path} is not what a run writes"):
            self.live = Live(**live)
        with refused_as(ConfigError, f"{folder.rounds.path} is not what a run writes"):
            self.rounds: list[Line] = read_table(folder.rounds.path, _ROUNDS, more=True).to_pylist()
            self.last_round: int = 0
            if self.rounds:
                self.last_round = self.rounds[-1]["round"]
        self.last_sign = self.live.time
        if not self.live.time:
            # The times of files count only where the run itself has said none: those of a copied
            # folder may be the time of the copy. A run that begins removes an old `state.json`.
            for path in (folder.config.path, folder.rounds.path, folder.clients.path):
                if path.exists():
                    self.last_sign = max(self.last_sign, path.stat().st_mtime)

    @property
    def num_rounds(self) -> int:
        """How many rounds the run will have; without a run config, how many it has so far."""
        planned = self.config.get("num-server-rounds")
        if isinstance(planned, int) and planned > 0:
            return planned
        return self.last_round

    @cached_property
    def state(self) -> Literal["running", "finished", "stopped", "failed"]:
        """Whether the run goes on or how it ended.

        A run without a summary counts as running if its files were written recently, or if none of
        them is there yet.
        """
        if self.summary.get("last_round_failed"):
            return "failed"
        if self.summary:
            return "finished"
        if self.live.phase == "failed":
            return "failed"
        if self.live.phase in ("finished", "stopped"):
            return "stopped"
        patience = SILENCE
        if not self.live.time and self.seconds_per_round is not None:
            # Without state.json, the only signs of life are lines of tables, one a round.
            patience = max(SILENCE, 3 * self.seconds_per_round)
        if self.last_sign and self.now - self.last_sign >= patience:
            return "stopped"
        return "running"

    @property
    def is_running(self) -> bool:
        """Whether the run goes on."""
        return self.state == "running"

    @cached_property
    def seconds_per_round(self) -> float | None:
        """The mean duration of the last 20 rounds, in seconds; ``None``: no round is over."""
        seconds = [seconds_of(row) for row in self.rounds if row["round"]]
        if not seconds:
            return None
        return statistics.fmean(seconds[-LATEST_ROUNDS:])

    @property
    def end(self) -> float | None:
        """The expected end, in seconds since 1970; ``None``: the run has ended or has no round."""
        if not self.is_running or self.seconds_per_round is None:
            return None
        seconds_left = (self.num_rounds - self.last_round) * self.seconds_per_round
        round_began = self.now
        if self.live.round > self.last_round:
            round_began = min(self.live.since, self.now)
        # If the present round takes longer than usual, the estimate lies in the past.
        return max(round_began + seconds_left, self.now)

    @property
    def figure(self) -> str:
        """The last figure of the test split, in words; empty: there is none."""
        for row in reversed(self.rounds):
            words = headline(row)
            if words:
                return words
        return ""

    @property
    def contradicted_share(self) -> float | None:
        """The share of held-out labels that the last model contradicts with high probability."""
        return last_contradicted(self.rounds, self.witness)

    @cached_property
    def provenance(self) -> Mapping[str, Any]:
        """The content of ``provenance.json``; empty: there is none."""
        return _read(self.folder.provenance)

    @property
    def witness(self) -> str:
        """The column of ``rounds.csv`` with :attr:`contradicted_share`.

        It is about the held-out data that the run pays by.
        """
        return witness_of(self.provenance)

    @cached_property
    def corrected_share(self) -> float:
        """The share of wrong labels for which the loss on these held-out data is corrected."""
        with refused_as(ConfigError, f"{self.folder.provenance.path} is not what a run writes"):
            record = self.provenance.get(examined_key(self.provenance), {})
            return float(record.get(NOISE, 0.0))

    @cached_property
    def members(self) -> list[WatchedMember]:
        """All members in ``clients.csv`` or ``state.json``; those that need a look come first."""
        lines = _by_client(self.folder.clients, _LINES)
        contributions = _by_client(self.folder.attribution, {"contribution": ("double", "sum")})
        names = _by_client(self.folder.names, {"name": ("string", "last")})
        nodes = {node.client_id: node for node in (*self.live.asked, *self.live.at_work)}
        members = []
        with refused_as(ConfigError, f"{self.folder.clients.path} is not what a run writes"):
            last_statuses = {client_id: line["status"][-1] for client_id, line in lines.items()}
            states = self._states(last_statuses)
            total_weight = math.fsum(line["weight"] or 0.0 for line in lines.values())
            for client_id in dict.fromkeys([*lines, *nodes]):
                values = dict(nodes.get(client_id, WatchedMember(client_id=client_id)))
                for table in (lines, names, contributions):
                    values.update(table.get(client_id, {}))
                values["state"] = states.get(client_id, "new")
                values["share"] = _share_of(values["weight"], total_weight)
                members.append(WatchedMember(**values))
            return sorted(members, key=_order_of)

    def _revoked(self, last_statuses: Mapping[int, str]) -> list[int]:
        """Return the client ids of members whose registration has ended.

        A run notices it by the reply of a member that it asked (``clients.csv``), or while the
        member is not asked (``attendance.csv``).
        """
        presences = _by_client(self.folder.attendance, {"presence": ("string", "last")})
        revoked = []
        for client_id, last_status in last_statuses.items():
            presence = presences.get(client_id, {}).get("presence")
            if "revoked" in (last_status, presence):
                revoked.append(client_id)
        return revoked

    def _states(self, last_statuses: Mapping[int, str]) -> dict[int, str]:
        """Return members' states by client id: in the present round, or their last status."""
        live = self.live
        present_round = max(self.last_round, live.round)
        left_out = {}
        decisions = _by_client(self.folder.quarantine, {"until_round": ("int64", "last")})
        for client_id, decision in decisions.items():
            if decision["until_round"] > present_round:
                left_out[client_id] = "quarantined"
        left_out.update(dict.fromkeys(self._revoked(last_statuses), "revoked"))
        if not self.is_running:
            return {**last_statuses, **left_out}

        # The order matters: a state that is set later tells more, and replaces an earlier one.
        states = dict(last_statuses)
        if live.online is not None:
            states.update(dict.fromkeys(last_statuses.keys() - live.online, "offline"))
        states.update(dict.fromkeys(live.paused, "paused"))
        states.update(left_out)
        at_work = {node.client_id for node in live.at_work}
        states.update(dict.fromkeys(at_work - live.answered, "late"))
        if live.phase == "training":
            asked_ids = {node.client_id for node in live.asked}
            states.update(dict.fromkeys(asked_ids, "training"))
            states.update(dict.fromkeys(asked_ids & live.answered, "answered"))
            states.update(dict.fromkeys(asked_ids & live.failed, "failed"))
        return states


def _share_of(weight: float | None, total: float) -> float | None:
    """Return a member's share of all weight; ``None`` if the total is 0 or absurdly large."""
    if not 0 < total < 1e30:
        return None
    if weight is None:
        return 0.0
    return weight / total


def _order_of(member: WatchedMember) -> tuple[int, int, str]:
    """Return a key for sorting: first by state, then the most misses first, then by name."""
    return STATES.index(member.state), -member.misses, member.label


def _read(file: JsonFile) -> dict[str, Any]:
    """Return the content of a JSON file; empty if the file does not exist."""
    if not file.path.exists():
        return {}
    return file.read()


def seconds_of(row: Line) -> float:
    """Return how long a round took, in seconds: replies, aggregation and evaluation."""
    return math.fsum(row.get(name) or 0.0 for name in _SECONDS)


def _by_client(table: Table, columns: Mapping[str, tuple[str, str]]) -> dict[int, Line]:
    """Return one line for each client of a table, by client id.

    ``columns`` has each column's type, and the PyArrow aggregation that makes one value of the
    client's values: ``"sum"``, ``"last"`` or ``"list"``.
    """
    types = {"client_id": "uint64"}
    aggregations = []
    for name, (column_type, function) in columns.items():
        types[name] = column_type
        aggregations.append((name, function))
    grouped = read_table(table.path, types).group_by("client_id", use_threads=False)
    lines: dict[int, Line] = {}
    for row in grouped.aggregate(aggregations).to_pylist():
        # PyArrow names each result after its column and aggregation, such as "weight_sum".
        lines[row["client_id"]] = {name: row[f"{name}_{how}"] for name, how in aggregations}
    return lines
