"""A run's folder as it stands there, summed up by member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import regular
from fedif_flower.messages.screening import Status
from fedif_flower.run.folder import JsonFile, RunFolder, Table
from fedif_flower.strategies.quarantine import Decision

_STATUSES: tuple[Status, ...] = get_args(Status)
_ANSWERS = pa.array(["accepted", "refused", "failed"])
_CLIENTS = {
    "round": pa.int64(),
    "partition_id": pa.int64(),
    "client_id": pa.uint64(),
    "malicious": pa.int64(),
    "weight_score": pa.float64(),
    "weight": pa.float64(),
    "status": pa.string(),
    "rejection": pa.string(),
}
_ATTRIBUTION = {"client_id": pa.uint64(), "contribution": pa.float64()}
_LAST = dict.fromkeys(("partition_id", "malicious", "status", "weight_score"), ("last",))
_Row = TypeVar("_Row")


@dataclass
class MemberTotals:
    """What a member's lines of ``clients.csv`` and ``attribution.csv`` come to.

    ``misses`` are the rounds that it was asked in since its last accepted reply, ``answered`` is
    the last round with a reply of any kind, 0: there was none. ``rejection`` is the last reason
    why a reply did not count, and ``rejected`` its round.
    """

    client_id: int
    partition_id: int = -1
    malicious: bool = False
    asked: int = 0
    accepted: int = 0
    misses: int = 0
    last_round: int = 0
    last_status: Status | None = None
    answered: int = 0
    rejection: str = ""
    rejected: int = 0
    weight: float = 0.0
    weight_score: float | None = None
    contribution: float | None = None


@dataclass(frozen=True)
class Records:
    """What a run's folder says, as it stands there.

    Attributes
    ----------
    name : str
        The folder's.
    config, summary, live : mapping
        The settings, the figures of a complete run, ``state.json``; empty where they are missing.
    rounds : list of dict
        The lines of ``rounds.csv``, as texts by column.
    quarantine : list of Decision
        Who was left out.
    members : mapping of int to MemberTotals
        By client id.
    names : mapping of int to str
        What the operator calls members.
    links : mapping of str to str
        What else there is to read: a path below the folder by its title.
    changed : float
        When the tables were last written, in seconds since 1970; 0: never.
    """

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    live: Mapping[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, str]] = field(default_factory=list)
    quarantine: list[Decision] = field(default_factory=list)
    members: Mapping[int, MemberTotals] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    changed: float = 0.0


def read_records(folder: RunFolder, *, members: bool = True) -> Records:
    """Return what the folder of a run says now; on request without the tables by member.

    Raises
    ------
    ConfigError
        If a file is not what it should be, or cannot be read, naming it.
    """
    try:
        return Records(
            name=folder.path.name,
            config=_object(folder.config),
            summary=_object(folder.summary),
            live=_object(folder.live),
            rounds=folder.rounds.read(),
            quarantine=_parsed(folder.quarantine, _decision),
            members=_members(folder) if members else {},
            names=dict(_parsed(folder.names, lambda row: (int(row["client_id"]), row["name"]))),
            links=_links(folder),
            changed=max(_changed(folder.rounds.path), _changed(folder.clients.path)),
        )
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error


def _members(folder: RunFolder) -> dict[int, MemberTotals]:
    """Return what both tables by member come to."""
    lines = _lines(folder.clients.path, _CLIENTS)
    if unknown := set(lines["status"].unique().to_pylist()) - set(_STATUSES):
        raise ConfigError(f"clients.csv: status = {min(map(str, unknown))!r}")
    is_accepted = pc.equal(lines["status"], "accepted")
    accepted = lines.filter(is_accepted)
    found = {
        row["client_id"]: MemberTotals(
            client_id=row["client_id"],
            partition_id=row["partition_id_last"],
            malicious=bool(row["malicious_last"]),
            asked=row["round_count"],
            last_round=row["round_last"],
            last_status=row["status_last"],
            weight=row["weight_sum"] or 0.0,
            weight_score=row["weight_score_last"],
        )
        for row in _by_client(lines, round=("count", "last"), weight=("sum",), **_LAST)
    }
    for row in _by_client(lines.filter(pc.is_in(lines["status"], _ANSWERS)), round=("last",)):
        found[row["client_id"]].answered = row["round_last"]
    for row in _by_client(accepted, round=("count",)):
        found[row["client_id"]].accepted = row["round_count"]
    rejected = lines.filter(pc.invert(is_accepted))
    for row in _by_client(rejected, round=("last",), rejection=("last",)):
        member = found[row["client_id"]]
        member.rejected, member.rejection = row["round_last"], row["rejection_last"] or ""
    for row in _by_client(_since_accepted(lines, accepted), round=("count",)):
        found[row["client_id"]].misses = row["round_count"]
    parts = _lines(folder.attribution.path, _ATTRIBUTION)
    for row in _by_client(parts, contribution=("sum",)):
        member = found.setdefault(row["client_id"], MemberTotals(row["client_id"]))
        member.contribution = row["contribution_sum"]
    return found


def _by_client(lines: pa.Table, **wanted: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return sums over each client's lines, in their order; ``last`` is the last that is there."""
    asked = [(name, what) for name, sums in wanted.items() for what in sums]
    found: list[dict[str, Any]] = (
        lines.group_by("client_id", use_threads=False).aggregate(asked).to_pylist()
    )
    return found


def _since_accepted(lines: pa.Table, accepted: pa.Table) -> pa.Table:
    """Return each client's lines after its last accepted one."""
    last = accepted.group_by("client_id", use_threads=False).aggregate([("round", "last")])
    whose = pc.index_in(lines["client_id"], last["client_id"])
    return lines.filter(pc.greater(lines["round"], pc.fill_null(last["round_last"].take(whose), 0)))


def _lines(path: Path, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return the whole lines of a CSV file that others write; a last one may be half there."""
    content = b""
    if path.is_file():
        with open(path, "rb", opener=regular) as file:
            content = file.read()
        content = content[: content.rfind(b"\n") + 1]
    if not content:
        return pa.schema(types).empty_table()
    try:
        return pa_csv.read_csv(
            pa.BufferReader(content),
            parse_options=pa_csv.ParseOptions(invalid_row_handler=lambda _: "skip"),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                include_missing_columns=True,
                null_values=[""],
            ),
        )
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _parsed(table: Table, read: Callable[[Mapping[str, str]], _Row]) -> list[_Row]:
    """Return every line of a table as ``read`` understands it."""
    try:
        return [read(row) for row in table.read()]
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{table.path} cannot be read: {error!r}") from error


def _decision(row: Mapping[str, str]) -> Decision:
    names = ("server_round", "until_round", "partition_id", "client_id")
    return Decision(**{name: int(row[name]) for name in names}, reason=row["reason"])


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


def _links(folder: RunFolder) -> dict[str, str]:
    there = {"Report": folder.report, "Statement": folder.statement / "statement.html"}
    return {
        title: path.relative_to(folder.path).as_posix()
        for title, path in there.items()
        if path.is_file()
    }
