"""Fills a study's CSV file: measures the cells that have no row, and adds their rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from fedif_flower.errors import FedIFError, StorageError
from fedif_flower.run.rows import read_rows
from fedif_studies.lab.parallel import carry_out, stopped_says_what_stays
from fedif_studies.rows import (
    Row,
    add_rows_unless,
    as_csv,
    loaded_revision,
    machine,
    replace_rows,
    require_committed,
)

Measure = Callable[[Any], Sequence[Row]]
"""Takes a cell and returns its rows, without the cell's own columns.

It is a function of a module, as other processes have to import it.
"""


def missing(path: Path, cells: Sequence[Row]) -> list[Row]:
    """Return the cells without a row: no row of the file has their values in their columns."""
    if not cells:
        return []
    columns = list(cells[0])
    measured = {_place(row, columns) for row in read_rows(path)}
    return [cell for cell in cells if _place(cell, columns) not in measured]


def _place(row: Row, columns: Iterable[str]) -> tuple[object, ...]:
    """Return a row's values in these columns, in a form in which they can be compared."""
    return tuple(_comparable(row.get(column)) for column in columns)


def _comparable(value: object) -> object:
    """Return a form in which a value equals its text in a file, as ``1`` equals ``"1.0"``."""
    text = "" if value is None else str(value)  # A file may have no column for an empty value.
    # JSON writes booleans in lower case, Python does not. Other text keeps its case, since two
    # names may differ by it.
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        number = float(text)
    except ValueError:
        return text
    # float() reads "1_0" as 10, and NaN does not equal itself: both stay text here.
    if "_" in text or not math.isfinite(number):
        return text
    return number


def fill(
    path: Path, cells: Sequence[Row], measure: Measure, *, jobs: int = 1, again: bool = False
) -> bool:
    """Measure the cells without a row in a file, add their rows, and return whether all have rows.

    Every row names its seed, and the revision and the processor that it was measured with. An error
    ends its own cell only. A signal ends the call; a cell that was running then is measured from
    its beginning by the next call.

    Parameters
    ----------
    path : Path
        The CSV file.
    cells : sequence of mapping
        The cells, which are begun in this order. All have the same columns.
    measure : callable
        Takes a cell and returns the other columns of its rows. It runs in other processes. Either
        the cell or the rows that are returned have a column ``seed``.
    jobs : int
        How many cells are measured at a time, >= 1, each on one thread. With 1 they are measured
        in this process.
    again : bool
        Measure all cells; the new rows of a cell replace its earlier ones.

    Raises
    ------
    ConfigError
        If the code is not committed, or a row has no seed.
    GridInterrupted
        If a signal stops it. The same call then measures what is left; with ``again`` it measures
        all cells once more.
    """
    if not cells:
        return True
    todo = missing(path, cells)
    typer.echo(f"{len(cells) - len(todo)} of {len(cells)} cells have a row")
    if again:
        todo = list(cells)
    elif not todo:
        typer.echo(f"nothing is measured: {path} has all; --again measures them again")
        return True
    require_committed()
    processor = machine()["processor"]
    waiting = _WaitingRows(path, again=again)

    def keep(cell: Row, rows: Sequence[Row]) -> None:
        waiting.add(cell, [{**cell, **row, "processor": processor} for row in rows])

    def name_of(cell: Row) -> str:
        return ", ".join(map(str, cell.values()))

    try:
        with stopped_says_what_stays(again=again):
            none_failed = carry_out(todo, partial(_rows_of, measure), keep, name_of, jobs)
    finally:
        try:
            all_written = waiting.write()
        finally:
            waiting.tell_of_unwritten()
    return none_failed and all_written


def _rows_of(measure: Measure, cell: Row) -> Sequence[Row]:
    """Return a cell's rows with the revision that measured them.

    It is the revision of this process: one that replaces a failed process loads the code that is
    checked out by then.

    Raises
    ------
    FedIFError
        If there are no rows: the cell would stay missing.
    """
    revision = loaded_revision()
    rows = measure(cell)
    if not rows:
        raise FedIFError("the measurement returned no rows")
    return [{**row, "revision": revision} for row in rows]


class _WaitingRows:
    """Rows that are written to a file as soon as possible, and wait while the disk is full.

    Parameters
    ----------
    path : Path
        The CSV file.
    again : bool
        Whether a cell's rows replace its earlier ones.
    """

    def __init__(self, path: Path, *, again: bool) -> None:
        self._path = path
        self._again = again
        self._waiting: list[tuple[Row, list[Row]]] = []

    def add(self, cell: Row, rows: list[Row]) -> None:
        """Write a cell's rows behind those that wait, as far as the disk has room."""
        self._waiting.append((cell, rows))
        self.write()

    def write(self) -> bool:
        """Write the rows that wait, and return whether none waits any more."""
        while self._waiting:
            cell, rows = self._waiting[0]
            try:
                self._put(cell, rows)
            except StorageError as error:
                typer.echo(f"{len(self._waiting)} cells' rows wait: {error}", err=True)
                return False
            del self._waiting[0]
        return True

    def _put(self, cell: Row, rows: list[Row]) -> None:
        columns = list(cell)
        place = _place(cell, columns)

        def is_of_cell(row: Row) -> bool:
            return _place(row, columns) == place

        if self._again:
            replace_rows(self._path, rows, is_of_cell)
        else:
            # Another process may have measured the cell meanwhile.
            add_rows_unless(self._path, rows, is_of_cell)

    def tell_of_unwritten(self) -> None:
        """Print the rows that could not be written, so that they are not lost."""
        for _, rows in self._waiting:
            typer.echo(f"not written into {self._path}:\n{as_csv(rows)}", err=True)
