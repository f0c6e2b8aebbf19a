r"""Hashes of what a statement reads; the head of each round binds them beside its leaves.

.. math:: R_t = H(\text{name, header and rows of round } t, \text{ of each table})

with H = SHA-256. Rows of round 0 count as rows of round 1. The rest belongs to the run as a whole,
and has two hashes in each round. :math:`O_t` is the hash of settings and provenance. They are known
before the first round of an attempt, so all heads of an attempt have the same, and members sign it
with the first one that they are told. :math:`S_t` is the hash of names and own parts
(``own_parts.csv``), which change with each round, so only the last one counts.
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

RUN_CONFIG = "run_config"  # A key of provenance.json: the run config as Flower gave it to the app.
Cells = Sequence[str]  # A row's cells.


@runtime_checkable
class EndTable(Protocol):
    """A callback with a table that is written at the run's end, and whose rows have no round."""

    table: Table

    def lines_now(self) -> list[dict[str, object]]:
        """Return the lines that the table would have if the run ended now."""
        ...


def bound_tables(run: RunFolder) -> list[Table]:
    """Return the tables whose rows belong to a round; their first column is its number."""
    return [
        run.clients,
        run.attribution,
        run.attributed_rounds,
        run.rounds,
        run.attendance,
        run.signatures,
    ]


class _Tail:
    """Reads the new rows of a CSV file that grows by whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.header: Cells = ()

    def read(self) -> list[Cells]:
        """Return the rows that were added since the last call, without the header."""
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
    """Hashes the rows of a run while it is being written; each row is read once.

    Parameters
    ----------
    run : RunFolder
        The run's folder, whose tables are begun.
    done : int
        The last round whose rows were hashed in an earlier attempt; 0 if there was no round.
    """

    def __init__(self, run: RunFolder, done: int) -> None:
        self._done = done  # The last round whose rows are hashed.
        if done == 0:  # No row is hashed yet, so those of round 0 are hashed with round 1.
            self._done = -1
        self._tails = {table.path.name: _Tail(table.path) for table in bound_tables(run)}
        self._waiting: dict[str, list[Cells]] = {name: [] for name in self._tails}

    def hash_until(self, number: int) -> bytes:
        """Return the hash of all rows up to round ``number`` that were not hashed yet."""
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
    """Return the hash of tables' rows.

    Parameters
    ----------
    content : iterable of (str, sequence of str, sequence of sequence of str)
        Each table's name, header and rows. A table without rows is left out.
    """
    tables = []
    for name, header, rows in content:
        if rows:
            tables.append([name, list(header), [list(row) for row in rows]])
    return hashlib.sha256(json.dumps(tables).encode()).digest()


def rows_by_round(run: RunFolder, last: int) -> dict[int, bytes]:
    """Return the hash of each round's rows, from 1 to ``last``, in the tables of a complete run.

    Raises
    ------
    EvidenceError
        If a table is not written as a run writes it, or has a row without a round, of a round after
        ``last``, or of an earlier round than the row before it.
    """
    content: dict[int, list[tuple[str, Cells, Sequence[Cells]]]] = defaultdict(list)
    for table in bound_tables(run):
        name = table.path.name
        header, rows = read_cells(table)
        rows_in: dict[int, list[Cells]] = defaultdict(list)  # By round.
        before = 1
        for line, row in enumerate(rows, start=2):
            with refused_as(EvidenceError, f"{name}, line {line}"):
                number = max(int(row[0]), 1)  # Rows of round 0 count for round 1.
                if number > last:
                    raise ValueError(f"it is of round {number}, of which there is no head")
                # No head binds the order of rounds, and a member's last line says its weight score.
                if number < before:
                    raise ValueError(f"it is of round {number}, and stands behind round {before}")
                before = number
                rows_in[number].append(row)
        for number, rows_of_round in rows_in.items():
            content[number].append((name, header, rows_of_round))
    return {number: hash_rows(content[number]) for number in range(1, last + 1)}


def read_cells(table: Table) -> tuple[Cells, list[Cells]]:
    """Return a table's header and rows, cell by cell; both are empty if there is no file.

    Raises
    ------
    EvidenceError
        If the file is not, byte by byte, what a run would write for these cells. Otherwise two
        programs could read different cells from the same bytes.
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


def _without(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def agreed_config(run: RunFolder) -> dict[str, Any] | None:
    """Return the run config that members agreed to, by key; ``None`` if it was not recorded.

    Members sign its hash. Other values in ``config.json`` are only the server's word.

    Raises
    ------
    EvidenceError
        If the record is no mapping.
    ConfigError
        If its ``own-settings`` cannot be read.
    """
    run_config = run.provenance.read().get(RUN_CONFIG)
    if run_config is None:
        return None
    if not isinstance(run_config, dict):
        raise EvidenceError(f"{run.provenance.path.name}: {RUN_CONFIG} is no mapping")
    return dict(with_own_settings(run_config))


def agreed_settings(run: RunFolder) -> dict[str, Any]:
    """Return a run's settings, with the values that members agreed to where they did.

    Keys of the run config have the values that it has there. Other keys have their values in
    ``config.json``, or else their defaults.
    """
    agreed = agreed_config(run)
    if agreed is None:
        return run.settings()
    return {**fixed_defaults(), **run.settings(), **agreed}


def fixed_defaults() -> dict[str, Any]:
    """Return the defaults of a run config by key, without the defaults that are ``"auto"``."""
    defaults = RunConfig.defaults() | own_defaults()
    return {key: value for key, value in defaults.items() if value != AUTO}


def origin_of(run: RunFolder) -> bytes:
    """Return the hash O_t of the settings and the provenance in a run's folder.

    It leaves out the settings that say how an attempt begins. It also leaves out the attempts and
    the run config, since each head binds these by itself.
    """
    settings = _without(run.config.read(), HOW_IT_BEGINS)
    origin = _without(run.provenance.read(), (ATTEMPTS_KEY, RUN_CONFIG))
    content = json.dumps([settings, origin], sort_keys=True)
    return hashlib.sha256(content.encode()).digest()


def state_of(run: RunFolder) -> bytes:
    """Return the hash S_t of names and own parts in a complete run's folder."""
    return hash_rows([_whole(run.names), _whole(run.own_parts)])


def state_now(run: RunFolder, ends: Iterable[EndTable]) -> bytes:
    """Return the hash S_t of a run that is being written.

    ``ends`` are the callbacks whose tables are written only at the end.
    """
    tables = [_whole(run.names)]
    for end in ends:
        rows = [_cells_of(line) for line in end.lines_now()]
        tables.append((end.table.path.name, end.table.columns, rows))
    return hash_rows(tables)


def _cells_of(line: Mapping[str, object]) -> Cells:
    """Return a line's cells as ``csv.writer`` would write them."""
    return [_text(value) for value in line.values()]


def _text(value: object) -> str:
    """Return a cell's text as ``csv.writer`` would write it."""
    written = cell(value)
    if isinstance(written, float):
        return repr(written)
    return str(written)


def _whole(table: Table) -> tuple[str, Cells, list[Cells]]:
    """Return a table's name, header and rows."""
    header, rows = read_cells(table)
    return table.path.name, header, rows


def _cells(text: str) -> list[Cells]:
    return list(csv.reader(StringIO(text, newline="")))
