"""The choice of cells from a table of the paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fedif_flower.errors import ConfigError
from fedif_studies.lab.cells import Cell, make_cell
from fedif_studies.lab.data import find_data
from fedif_studies.paper.tables import TABLES, Settings, Table, Variant


@dataclass(frozen=True)
class Selection:
    """What of a table to run.

    Attributes
    ----------
    methods : tuple of str
        Rows, in this order; empty: all.
    patterns : tuple of str
        Shell patterns on a cell's name, with or without its seed, or on its column; empty: all.
    seeds : int
        Seeds 0 ... seeds - 1.
    rounds : int, optional
        Instead of the table's own number.
    data_dir : str
        Where the data sets are.
    """

    methods: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    seeds: int = 1
    rounds: int | None = None
    data_dir: str = ""


def find_table(name: str) -> Table:
    """Return a table by its name, or raise ConfigError."""
    if name not in TABLES:
        raise ConfigError(f"table = {name!r}; allowed: {', '.join(TABLES)}")
    return TABLES[name]


def cell_name(row: Variant, column: Variant, seed: int) -> str:
    """Return what a cell is called: its column, its row, its seed."""
    return f"{column.key}_{row.key}_seed{seed}"


def select(table: Table, selection: Selection) -> list[tuple[Variant, Variant, int]]:
    """Return the (row, column, seed) that were asked for: seed by seed, row by row.

    Raises
    ------
    ConfigError
        If a row is unknown, or no cell is left.
    """
    rows = {row.key: row for row in table.rows}
    if unknown := [name for name in selection.methods if name not in rows]:
        raise ConfigError(
            f"methods = {unknown[0]!r}; allowed in table {table.name!r}: {', '.join(rows)}"
        )
    chosen = [
        (rows[name], column, seed)
        for seed in range(selection.seeds)
        for name in selection.methods or rows
        for column in table.columns
        if _matches(rows[name], column, seed, selection.patterns)
    ]
    if not chosen:
        raise ConfigError(
            f"cells = {', '.join(selection.patterns)!r}: no cell of table {table.name!r} has such "
            f"a name; one is {cell_name(table.rows[0], table.columns[0], 0)!r}"
        )
    return chosen


def table_cells(
    tables: Iterable[Table], selection: Selection, defaults: Settings, output_dir: Path
) -> list[Cell]:
    """Return the cells of tables that were asked for, ready to run: seed by seed.

    Parameters
    ----------
    tables : iterable of Table
        The tables.
    selection : Selection
        What of them.
    defaults : Mapping[str, Scalar]
        A complete run config, for everything that the table leaves open.
    output_dir : Path
        Results go to ``<output>/<table>/``.
    """
    chosen = [(table, *cell) for table in tables for cell in select(table, selection)]
    cells = []
    for table, row, column, seed in sorted(chosen, key=lambda cell: cell[3]):
        settings = {**defaults, **table.settings(row, column), "seed": seed}
        if selection.rounds is not None:
            settings["num-server-rounds"] = selection.rounds
        found, data = find_data(str(settings["dataset"]), selection.data_dir)
        cells.append(
            make_cell(table.name, cell_name(row, column, seed), settings | found, output_dir, data)
        )
    return cells


def _matches(row: Variant, column: Variant, seed: int, patterns: Sequence[str]) -> bool:
    names = (cell_name(row, column, seed), f"{column.key}_{row.key}", column.key)
    return not patterns or any(fnmatchcase(name, p) for name in names for p in patterns)
