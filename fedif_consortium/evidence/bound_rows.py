r"""The very rows that a statement reads, hashed round by round: what heads bind beside leaves.

.. math:: R_t = H(\text{name, header and rows of round } t, \text{ of each table})

Rows of rounds before the first one count as rows of the first. What is of the run as a whole, that
is settings, provenance, names, and what members' updates have of their own, has a hash of its own
after each round; the last one counts.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedif_consortium.evidence.attempts import ATTEMPTS_KEY, HOW_IT_BEGINS
from fedif_flower.errors import EvidenceError
from fedif_flower.foreign import refused_as, regular
from fedif_flower.run.config import RunConfig, with_own_settings
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.own_sections import own_defaults
from fedif_flower.run.record_files import Table
from fedif_flower.run.rows import cell
from fedif_flower.settings import AUTO

RUN_CONFIG = "run_config"  # In the provenance: as Flower gave it to the app.
Cells = Sequence[str]


@runtime_checkable
class EndTable(Protocol):
    """A callback whose table, which is of no round, is written at the run's end."""

    table: Table

    def lines_now(self) -> list[dict[str, object]]:
        """Return the lines that it would have if the run ended now."""
        ...


def bound_tables(run: RunFolder) -> list[Table]:
    """Return the tables whose rows are of a round, which their first column says."""
    return [
        run.clients,
        run.attribution,
        run.attributed_rounds,
        run.rounds,
        run.attendance,
        run.signatures,
    ]


class _Tail:
    """What is new in a file that grows by whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.header: Cells = ()

    def read(self) -> list[Cells]:
        """Return the rows that came since; the first one is the header."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        rows = _cells(whole.decode())
        if rows and not self.header:
            self.header, *rows = rows
        return rows


class GrowingRows:
    """The rows of a run that is being written: each is read once.

    Parameters
    ----------
    run : RunFolder
        The run's, with its tables begun.
    done : int
        The rows of the rounds up to this one were hashed in an earlier attempt; 0: there was none.
    """

    def __init__(self, run: RunFolder, done: int) -> None:
        self._done = done  # Rows up to this round are hashed.
        if done == 0:  # Nothing is: a row of round 0, which stands before round 1, counts for it.
            self._done = -1
        self._tails = {table.path.name: _Tail(table.path) for table in bound_tables(run)}
        self._waiting: dict[str, list[Cells]] = {name: [] for name in self._tails}

    def hash_until(self, number: int) -> bytes:
        """Return the hash of the rows up to a round that were not hashed yet."""
        content = []
        for name, tail in self._tails.items():
            rows: list[Cells] = []
            later_rows: list[Cells] = []
            for row in [*self._waiting[name], *tail.read()]:
                row_number = int(row[0])
                if row_number > number:
                    later_rows.append(row)
                elif row_number > self._done:
                    rows.append(row)
            self._waiting[name] = later_rows
            content.append((name, tail.header, rows))
        self._done = number
        return hash_rows(content)


def hash_rows(content: Iterable[tuple[str, Cells, Sequence[Cells]]]) -> bytes:
    """Return the hash of rows by table: each table's name, its header and its rows."""
    tables = []
    for name, header, rows in content:
        if rows:
            tables.append([name, list(header), [list(row) for row in rows]])
    return hashlib.sha256(json.dumps(tables).encode()).digest()


def rows_by_round(run: RunFolder, last: int) -> dict[int, bytes]:
    """Return the hash of each round's rows, as a complete run's tables have them.

    Raises
    ------
    EvidenceError
        Naming a table that is not written as a run writes it, or has a row of no round.
    """
    content: dict[int, list[tuple[str, Cells, Sequence[Cells]]]] = defaultdict(list)
    for table in bound_tables(run):
        name = table.path.name
        header, rows = read_cells(table)
        rows_in: dict[int, list[Cells]] = defaultdict(list)  # By round.
        for line, row in enumerate(rows, start=2):
            with refused_as(EvidenceError, f"{name}, line {line}"):
                number = max(int(row[0]), 1)
                if number > last:
                    raise ValueError(f"it is of round {number}, of which there is no head")
                rows_in[number].append(row)
        for number, rows_of_round in rows_in.items():
            content[number].append((name, header, rows_of_round))
    return {number: hash_rows(content[number]) for number in range(1, last + 1)}


def read_cells(table: Table) -> tuple[Cells, list[Cells]]:
    """Return a table's header and rows, cell by cell; nothing where there is no file.

    Raises
    ------
    EvidenceError
        If it is not, byte by byte, what a run writes: two readers could read two things then.
    """
    if not table.path.exists():
        return (), []
    name = table.path.name
    with (
        refused_as(EvidenceError, f"{name} cannot be read"),
        open(table.path, newline="", encoding="utf-8", opener=regular) as file,
    ):
        text = file.read()
        rows = _cells(text)
    written = StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    if written.getvalue() != text or not rows or not all(rows):
        raise EvidenceError(f"{name} is not written as a run writes it")
    return rows[0], rows[1:]


def state_hash(
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    tables: Iterable[tuple[str, Sequence[Cells]]],
) -> bytes:
    """Return the hash of what is of the run as a whole.

    How an attempt begins does not count, nor do the attempts, which heads name by themselves.

    Parameters
    ----------
    config, provenance : mapping
        As ``config.json`` and ``provenance.json`` have them.
    tables : iterable of (str, sequence of sequence of str)
        Names and cells of the tables that are of no round.
    """
    settings = _without(config, HOW_IT_BEGINS)
    origin = _without(provenance, (ATTEMPTS_KEY, RUN_CONFIG))
    named_rows = []
    for name, rows in tables:
        if rows:
            named_rows.append([name, [list(row) for row in rows]])
    state = json.dumps([settings, origin, named_rows], sort_keys=True)
    return hashlib.sha256(state.encode()).digest()


def _without(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def agreed_config(run: RunFolder) -> dict[str, Any] | None:
    """Return the run config as members agreed to it, by key; ``None``: it was not recorded.

    Its hash is signed. What ``config.json`` says beside it is the server's word.

    Raises
    ------
    EvidenceError
        If it is no mapping.
    """
    run_config = run.provenance.read().get(RUN_CONFIG)
    if run_config is None:
        return None
    if not isinstance(run_config, dict):
        raise EvidenceError(f"{run.provenance.path.name}: {RUN_CONFIG} is no mapping")
    return dict(with_own_settings(run_config))


def agreed_settings(run: RunFolder) -> dict[str, Any]:
    """Return a run's settings, with those of the run config as its members agreed to them.

    What a run config leaves out was agreed to as its default.
    """
    agreed = agreed_config(run)
    if agreed is None:
        return run.settings()
    return {**fixed_defaults(), **run.settings(), **agreed}


def fixed_defaults() -> dict[str, Any]:
    """Return the defaults of a run config by key, but for those that are ``"auto"``."""
    defaults = RunConfig.defaults() | own_defaults()
    return {key: value for key, value in defaults.items() if value != AUTO}


def state_of(run: RunFolder) -> bytes:
    """Return the hash of what is of a complete run as a whole."""
    return _state(run, [_whole(run.names), _whole(run.own_parts)])


def state_now(run: RunFolder, ends: Iterable[EndTable]) -> bytes:
    """Return the hash of what is of a run as a whole that is being written."""
    tables = [_whole(run.names)]
    for end in ends:
        rows: list[Cells] = [list(map(_text, line.values())) for line in end.lines_now()]
        tables.append((end.table.path.name, _with_header(end.table.columns, rows)))
    return _state(run, tables)


def _text(value: object) -> str:
    """Return a cell's text, as a CSV file has it."""
    written = cell(value)
    if isinstance(written, float):
        return repr(written)
    return str(written)


def _whole(table: Table) -> tuple[str, list[Cells]]:
    """Return a table's name, and its header and rows."""
    header, rows = read_cells(table)
    return table.path.name, _with_header(header, rows)


def _with_header(header: Cells, rows: list[Cells]) -> list[Cells]:
    """Return header and rows; nothing where there are no rows."""
    if not rows:
        return []
    return [header, *rows]


def _state(run: RunFolder, tables: Iterable[tuple[str, Sequence[Cells]]]) -> bytes:
    return state_hash(run.config.read(), run.provenance.read(), tables)


def _cells(text: str) -> list[Cells]:
    return list(csv.reader(StringIO(text, newline="")))
