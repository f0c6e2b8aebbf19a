"""A study's file of rows, filled: the cells without a row are measured, and theirs added."""

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
    committed_revision,
    machine,
    replace_rows,
)

Measure = Callable[[Any], Sequence[Row]]
"""Takes a cell and returns what its rows have beside it; a function of a module."""


def missing(path: Path, cells: Sequence[Row]) -> list[Row]:
    """Return the cells without a row in a file: none has the same values in their columns."""
    if not cells:
        return []
    columns = list(cells[0])
    measured = {_place(row, columns) for row in read_rows(path)}
    return [cell for cell in cells if _place(cell, columns) not in measured]


def _place(row: Row, columns: Iterable[str]) -> tuple[object, ...]:
    """Return a row's values in the columns of cells."""
    return tuple(_comparable(row.get(column)) for column in columns)


def _comparable(value: object) -> object:
    """Return what a value and its text in a file have in common: ``1`` and ``"1.0"``."""
    text = "" if value is None else str(value)  # A file may have no column for an empty value.
    # JSON writes truth in small letters; names that differ by case are two.
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        number = float(text)
    except ValueError:
        return text
    # Python takes "1_0" for 10, and "nan" for what is not even itself: both are names here.
    if "_" in text or not math.isfinite(number):
        return text
    return number


def fill(
    path: Path, cells: Sequence[Row], measure: Measure, *, jobs: int = 1, again: bool = False
) -> bool:
    """Measure the cells without a row in a file, and add theirs; return whether all are there.

    Every row names the revision and the processor that it is from, and its seed. A signal ends it,
    and what is running then is begun anew later; an error ends its own cell only.

    Parameters
    ----------
    path : Path
        The CSV file.
    cells : sequence of mapping
        In the order in which they are begun; all have the same columns.
    measure : callable
        Takes a cell and returns its rows' other columns; it runs in other processes. One of the two
        has a column ``seed``.
    jobs : int
        So many cells at a time, >= 1, each on one thread; 1: in this process.
    again : bool
        Measure all of them; a cell's new rows take the place of its earlier ones.

    Raises
    ------
    ConfigError
        If the code is not committed, or a row has no seed.
    GridInterrupted
        If a signal asked for an end; the same call goes on from there, or ``again`` begins anew.
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
    origin = {"revision": committed_revision(), "processor": machine()["processor"]}
    waiting = _WaitingRows(path, again=again)

    def keep(cell: Row, rows: Sequence[Row]) -> None:
        waiting.add(cell, [{**cell, **row, **origin} for row in rows])

    def name_of(cell: Row) -> str:
        return ", ".join(map(str, cell.values()))

    try:
        with stopped_says_what_stays(again=again):
            none_failed = carry_out(todo, partial(_rows_of, measure), keep, name_of, jobs)
    finally:
        all_written = waiting.write()
        waiting.tell_of_unwritten()
    return none_failed and all_written


def _rows_of(measure: Measure, cell: Row) -> Sequence[Row]:
    """Measure a cell; raise FedIFError where nothing came of it, as it would count as missing."""
    rows = measure(cell)
    if not rows:
        raise FedIFError("no row came of it")
    return rows


class _WaitingRows:
    """Rows on their way to a file: where the disk is full they wait until it has room.

    Parameters
    ----------
    path : Path
        The CSV file.
    again : bool
        A cell's rows take the place of its earlier ones.
    """

    def __init__(self, path: Path, *, again: bool) -> None:
        self._path = path
        self._again = again
        self._waiting: list[tuple[Row, list[Row]]] = []

    def add(self, cell: Row, rows: list[Row]) -> None:
        """Write a cell's rows, and those that wait, if the disk takes them."""
        self._waiting.append((cell, rows))
        self.write()

    def write(self) -> bool:
        """Write what waits, and return whether nothing waits any more."""
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
            # Another study may have measured the cell meanwhile.
            add_rows_unless(self._path, rows, is_of_cell)

    def tell_of_unwritten(self) -> None:
        """Print what could not be written, so that it is not lost."""
        for _, rows in self._waiting:
            typer.echo(f"not written into {self._path}:\n{as_csv(rows)}", err=True)
