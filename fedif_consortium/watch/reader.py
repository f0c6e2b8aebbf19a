"""A run's tables, read as they grow and summed up by member: 1,000 rounds of 1,000 in a second."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from fedif_flower.errors import ConfigError
from fedif_flower.messages.screening import Status
from fedif_flower.run.folder import JsonFile, RunFolder, Table
from fedif_flower.strategies.quarantine import Decision

STATUSES: tuple[Status, ...] = get_args(Status)
_ACCEPTED = STATUSES.index("accepted")
_IS_ANSWER = np.array([status in ("accepted", "refused", "failed") for status in STATUSES])
_CLIENTS = {
    "round": pa.int64(),
    "partition_id": pa.int64(),
    "client_id": pa.uint64(),
    "malicious": pa.int64(),
    "weight_score": pa.float64(),
    "weight": pa.float64(),
    "status": pa.dictionary(pa.int32(), pa.string()),
    "rejection": pa.string(),
}
_ATTRIBUTION = {"client_id": pa.uint64(), "contribution": pa.float64()}
_PIECE = 2**24  # Bytes that are read at a time.
_Row = TypeVar("_Row")


@dataclass
class MemberTotals:
    """What a member's lines of ``clients.csv`` and ``attribution.csv`` come to.

    ``counts`` are its lines by status. ``misses`` are those since its last accepted reply,
    ``answered`` is the last round with a reply of any kind, 0: there was none. ``rejection`` is
    the last reason why a reply did not count, and ``rejected`` its round.
    """

    client_id: int
    partition_id: int = -1
    malicious: bool = False
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    misses: int = 0
    last_round: int = 0
    last_status: Status | None = None
    answered: int = 0
    rejection: str = ""
    rejected: int = 0
    weight: float = 0.0
    weight_score: float | None = None
    contribution: float | None = None

    @property
    def asked(self) -> int:
        """How many lines it has."""
        return sum(self.counts.values())


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


class RunReader:
    """Reads a run's folder again and again; of the tables by member, what is new.

    Parameters
    ----------
    folder : RunFolder
        Of a run that goes on, is over, or was copied here.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._clients = GrowingTable(folder.clients.path, _CLIENTS)
        self._attribution = GrowingTable(folder.attribution.path, _ATTRIBUTION)
        self._members: dict[int, MemberTotals] = {}

    def read(self, *, members: bool = True) -> Records:
        """Return what the folder says now; on request without the tables by member.

        Raises
        ------
        ConfigError
            If a file is not what it should be, or cannot be read, naming it.
        """
        try:
            return self._read(members=members)
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error

    def _read(self, *, members: bool) -> Records:
        if members:
            self._read_members()
        folder = self.folder
        return Records(
            name=folder.path.name,
            config=_object(folder.config),
            summary=_object(folder.summary),
            live=_object(folder.live),
            rounds=folder.rounds.read(),
            quarantine=_parsed(folder.quarantine, _decision),
            members=self._members,
            names=dict(_parsed(folder.names, _name)),
            links=_links(folder),
            changed=max(_changed(folder.rounds.path), _changed(folder.clients.path)),
        )

    def _read_members(self) -> None:
        tables = (self._clients, self._attribution)
        if any(table.was_replaced() for table in tables):  # A resumed run writes both anew.
            self._members = {}
            for table in tables:
                table.rewind()
        for lines in self._clients.more():
            add_lines(self._members, lines)
        for parts in self._attribution.more():
            add_contributions(self._members, parts)


class GrowingTable:
    """The whole lines of a CSV file that others write, with no line break in a cell.

    Parameters
    ----------
    path : Path
        The file; it need not be there.
    types : mapping of str to pyarrow.DataType
        The columns that are read.
    """

    def __init__(self, path: Path, types: Mapping[str, pa.DataType]) -> None:
        self._path = path
        self._types = dict(types)
        self._inode = self._end = 0
        self._columns: list[str] = []

    def was_replaced(self) -> bool:
        """Tell whether what was read is not there any more."""
        if not self._end:
            return False
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return True
        return stat.st_ino != self._inode or stat.st_size < self._end

    def rewind(self) -> None:
        """Begin with the first line again."""
        self._end = 0

    def more(self) -> Iterator[pa.Table]:
        """Return the lines that are new, some at a time.

        Raises
        ------
        ConfigError
            If a line is none of such a table.
        """
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            self._inode = os.fstat(file.fileno()).st_ino
            while True:
                file.seek(self._end)
                content = file.read(_PIECE)
                # A last line may be half there.
                content = content[: content.rfind(b"\n") + 1]
                if not content:
                    return
                try:
                    lines = self._parsed(content)
                except (pa.ArrowInvalid, UnicodeDecodeError, csv.Error) as error:
                    raise ConfigError(f"{self._path} cannot be read: {error}") from error
                self._end += len(content)
                if lines is not None:
                    yield lines

    def _parsed(self, content: bytes) -> pa.Table | None:
        start = 0
        if not self._end:
            start = content.find(b"\n") + 1
            self._columns = next(csv.reader([content[:start].decode()]), [])
        if start == len(content):
            return None
        return pa_csv.read_csv(
            pa.BufferReader(pa.py_buffer(content).slice(start)),
            read_options=pa_csv.ReadOptions(column_names=self._columns),
            parse_options=pa_csv.ParseOptions(invalid_row_handler=lambda _: "skip"),
            convert_options=pa_csv.ConvertOptions(
                column_types=self._types,
                include_columns=list(self._types),
                include_missing_columns=True,
                null_values=[""],
            ),
        )


def add_lines(members: dict[int, MemberTotals], lines: pa.Table) -> None:
    """Add lines of ``clients.csv`` to members' totals, in their order."""
    ids, who = _by_client(lines)  # [n], [k]: which of them a line is of.
    position = np.arange(len(who))
    rounds = lines["round"].to_numpy()
    status = _codes(lines["status"])
    scores = lines["weight_score"].to_numpy()
    weights = np.bincount(who, np.nan_to_num(lines["weight"].to_numpy()), len(ids))
    counts = np.bincount(who * len(STATUSES) + status, minlength=len(ids) * len(STATUSES))
    last = _last(who, len(ids))
    answer = _last(who, len(ids), _IS_ANSWER[status])
    usable = _last(who, len(ids), status == _ACCEPTED)
    rejected = _last(who, len(ids), status != _ACCEPTED)
    scored = _last(who, len(ids), ~np.isnan(scores))
    misses = np.bincount(who[position > usable[who]], minlength=len(ids))
    for i, client_id in enumerate(ids.tolist()):
        member = members.setdefault(client_id, MemberTotals(client_id))
        for name, count in zip(STATUSES, counts.reshape(len(ids), -1)[i].tolist(), strict=True):
            member.counts[name] += count
        member.weight += float(weights[i])
        member.misses = int(misses[i]) + (member.misses if usable[i] < 0 else 0)
        member.last_round = int(rounds[last[i]])
        member.last_status = STATUSES[status[last[i]]]
        member.partition_id = lines["partition_id"][last[i]].as_py()
        member.malicious = bool(lines["malicious"][last[i]].as_py())
        if answer[i] >= 0:
            member.answered = int(rounds[answer[i]])
        if scored[i] >= 0:
            member.weight_score = float(scores[scored[i]])
        if rejected[i] >= 0:
            member.rejection = lines["rejection"][rejected[i]].as_py() or ""
            member.rejected = int(rounds[rejected[i]])


def add_contributions(members: dict[int, MemberTotals], parts: pa.Table) -> None:
    """Add lines of ``attribution.csv`` to members' totals."""
    ids, who = _by_client(parts)
    sums = np.bincount(who, parts["contribution"].to_numpy(), len(ids))
    for client_id, value in zip(ids.tolist(), sums.tolist(), strict=True):
        member = members.setdefault(client_id, MemberTotals(client_id))
        member.contribution = (member.contribution or 0.0) + value


def _by_client(table: pa.Table) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Return the clients of a table, and for each line which of them it is of."""
    encoded = table["client_id"].combine_chunks().dictionary_encode()
    return encoded.dictionary.to_numpy(), encoded.indices.to_numpy()


def _codes(statuses: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the statuses of lines by their places among all there are."""
    encoded = statuses.unify_dictionaries().combine_chunks()
    words = encoded.dictionary.to_pylist()
    if unknown := set(words) - set(STATUSES):
        raise ConfigError(f"clients.csv: status = {min(map(str, unknown))!r}")
    places = np.array([STATUSES.index(word) for word in words])
    codes: NDArray[np.int64] = places[encoded.indices.to_numpy()]
    return codes


def _last(
    who: NDArray[np.int32], num: int, chosen: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Return the last line of each client, or the last chosen one; -1: there is none."""
    found = np.full(num, -1)
    lines = np.arange(len(who)) if chosen is None else np.flatnonzero(chosen)
    found[who[lines]] = lines  # Of those assigned to one place the last one stays.
    return found


def _parsed(table: Table, read: Callable[[Mapping[str, str]], _Row]) -> list[_Row]:
    """Return every line of a table as ``read`` understands it."""
    try:
        return [read(row) for row in table.read()]
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{table.path} cannot be read: {error!r}") from error


def _name(row: Mapping[str, str]) -> tuple[int, str]:
    return int(row["client_id"]), row["name"]


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
