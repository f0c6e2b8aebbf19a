"""The cells of the paper's tables: chosen, run, and filled with what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedif_flower.errors import require
from fedif_flower.run.config import RunConfig
from fedif_flower.settings import Scalar
from fedif_studies.lab.cells import Cell, find_data, make_cell
from fedif_studies.lab.measurements import PATHS, Measurement
from fedif_studies.lab.table import MeanStd
from fedif_studies.paper.tables import Settings, Table, Variant

# Free in a table: what changes neither protocol nor method.
_FREE = {*PATHS, "seed", "num-server-rounds", "device", "threads-per-client"}
_FREE |= {"max-failed-rounds", "min-valid-replies"}
_MOST_SHOWN = 3  # Settings in which a run differs from a cell.

Place = tuple[Variant, Variant, int]
"""A cell of a table: its row, its column, its seed."""


def cell_name(row: Variant, column: Variant, seed: int) -> str:
    """Return what a cell is called: its column, its row, its seed."""
    return f"{column.key}_{row.key}_seed{seed}"


def select(
    table: Table, methods: Sequence[str] = (), patterns: Sequence[str] = (), seeds: int = 1
) -> list[Place]:
    """Return the (row, column, seed) that were asked for: seed by seed, row by row.

    Parameters
    ----------
    table : Table
        The table.
    methods : sequence of str
        Rows, in this order; empty: all.
    patterns : sequence of str
        Shell patterns on a cell's name, with or without its seed, or on its column; empty: all.
    seeds : int
        Seeds 0 ... seeds - 1.

    Raises
    ------
    ConfigError
        If a row is unknown, or no cell is left.
    """
    rows = {row.key: row for row in table.rows}
    for name in methods:
        require(name in rows, "methods", name, f"in table {table.name!r}: {', '.join(rows)}")

    def fits(row: Variant, column: Variant, seed: int) -> bool:
        names = (cell_name(row, column, seed), f"{column.key}_{row.key}", column.key)
        return not patterns or any(fnmatchcase(name, p) for name in names for p in patterns)

    places = product(range(seeds), (rows[name] for name in methods or rows), table.columns)
    chosen = [(row, column, seed) for seed, row, column in places if fits(row, column, seed)]
    example = cell_name(table.rows[0], table.columns[0], 0)
    allowed = f"a cell's name in table {table.name!r}, such as {example!r}"
    require(bool(chosen), "cells", ", ".join(patterns), allowed)
    return chosen


def table_cells(
    chosen: Iterable[tuple[Table, Sequence[Place]]],
    defaults: Settings,
    output_dir: Path,
    rounds: int | None = None,
    data_dir: str = "",
) -> list[Cell]:
    """Return cells of tables, ready to run: seed by seed.

    Parameters
    ----------
    chosen : iterable of tuple
        Tables, and what :func:`select` returned of each.
    defaults : Mapping[str, Scalar]
        A complete run config, for everything that the table leaves open.
    output_dir : Path
        Results go to ``<output>/<table>/``.
    rounds : int, optional
        Instead of the table's own number.
    data_dir : str
        Where the data sets are.
    """
    cells = []
    places = [(table, *place) for table, found in chosen for place in found]
    for table, row, column, seed in sorted(places, key=lambda place: place[3]):
        settings = {**defaults, **table.settings(row, column), "seed": seed}
        settings["num-server-rounds"] = rounds or table.rounds
        found, data = find_data(str(settings["dataset"]), data_dir)
        name = cell_name(row, column, seed)
        cells.append(make_cell(table.name, name, settings | found, output_dir, data))
    return cells


@dataclass(frozen=True)
class TableCell:
    """A cell of a table, measured or not.

    Attributes
    ----------
    row, column : Variant
        Where it is.
    measurements : tuple of Measurement
        One for each seed, all of the same number of rounds; empty: missing.
    paper : MeanStd, optional
        The paper's value and standard deviation.
    gpu : str
        What GPU measured it, which has a row of its own; empty: a CPU.
    """

    row: Variant
    column: Variant
    measurements: tuple[Measurement, ...]
    paper: MeanStd | None
    gpu: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Its row, which names a GPU as well, and its column, by their keys."""
        return f"{self.row.key} {self.gpu}".strip(), self.column.key

    @property
    def title(self) -> str:
        """What its row is called."""
        return f"{self.row.title} ({self.gpu})" if self.gpu else self.row.title

    def mean(self, name: str, scale: int = 1) -> MeanStd | None:
        """Return a figure over seeds, times ``scale``; ``None`` where nobody has it."""
        values = [scale * m.figures[name] for m in self.measurements if name in m.figures]
        return MeanStd.of(values) if values else None


def fill_table(
    table: Table,
    measurements: Iterable[Measurement],
    defaults: Settings,
    rounds: int | None = None,
    changed: Settings = MappingProxyType({}),
) -> list[TableCell]:
    """Return every cell of a table, column by column, with the measurements that belong to it.

    Those of a GPU are cells of their own, after the CPU's.

    Parameters
    ----------
    table : Table
        The table.
    measurements : iterable of Measurement
        Any runs; those with other settings than a cell's are left out.
    defaults : Mapping[str, Scalar]
        A complete run config, for everything that the table leaves open.
    rounds : int, optional
        Only runs of so many rounds; ``None``: of the table's own number. Accuracies after another
        number of rounds than the paper's have none of its figures beside them.
    changed : Mapping[str, Scalar]
        What the runs have in place of the cells' own settings.
    """
    length = rounds or table.rounds
    # Seconds are those of a round.
    compared = table.is_timed or length == table.rounds
    fitting = [m for m in measurements if m.rounds == length]
    cells = []
    for column in table.columns:
        for row in table.rows:
            wanted = _wanted(table, row, column, defaults, changed)
            of_cell = [m for m in fitting if not _differences(m, wanted)]
            printed = table.paper.get(row.key, {}).get(column.key)
            paper = MeanStd(*printed) if printed and compared else None
            # GPUs sum in another order, and take other times.
            for gpu in ["", *sorted({m.gpu for m in of_cell} - {""})]:
                of_seed = {m.seed: m for m in of_cell if m.gpu == gpu}
                found = tuple(of_seed[seed] for seed in sorted(of_seed))
                cells.append(TableCell(row, column, found, paper, gpu))
    return cells


def measured_or_missing(cells: Sequence[TableCell]) -> list[TableCell]:
    """Return cells without those of a CPU that a GPU alone has measured."""
    by_gpu = {(c.row.key, c.column.key) for c in cells if c.gpu}
    return [c for c in cells if c.measurements or (c.row.key, c.column.key) not in by_gpu]


class WantedRun(NamedTuple):
    """The settings that a run of a cell has to have."""

    table: Table
    row: Variant
    column: Variant
    settings: Mapping[str, Scalar]


def wanted_runs(
    tables: Iterable[Table], defaults: Settings, changed: Settings = MappingProxyType({})
) -> list[WantedRun]:
    """Return the settings of every cell, as it is and with what it may have in their place.

    Parameters
    ----------
    tables : iterable of Table
        With the cells.
    defaults : Mapping[str, Scalar]
        A complete run config, for everything that a table leaves open.
    changed : Mapping[str, Scalar]
        What a cell may have in place of its own settings.
    """
    return [
        WantedRun(table, row, column, _wanted(table, row, column, defaults, instead))
        for table in tables
        for row, column, instead in product(table.rows, table.columns, ({}, changed))
    ]


def why_in_no_cell(measurement: Measurement, wanted: Sequence[WantedRun]) -> str:
    """Return in what a run differs from the cell that it comes nearest to; empty: it is one.

    Parameters
    ----------
    measurement : Measurement
        The run.
    wanted : sequence of WantedRun
        What it might be, one or more.
    """
    differences = []
    for cell in wanted:
        of_cell = _differences(measurement, cell.settings)
        if measurement.rounds != cell.table.rounds:
            of_cell["num-server-rounds"] = measurement.rounds, cell.table.rounds
        if not of_cell:
            return ""
        differences.append(of_cell)
    nearest = min(range(len(wanted)), key=lambda number: len(differences[number]))
    shown = [
        f"{key} = {own!r}, not {cells!r}" for key, (own, cells) in differences[nearest].items()
    ]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    table, row, column, _ = wanted[nearest]
    return (
        f"nearest is {row.key} under {column.key} of {table.name}: "
        f"{', '.join(shown[:_MOST_SHOWN])}{more}"
    )


def of_shared_seeds(cells: Sequence[TableCell]) -> list[TableCell]:
    """Return cells with the seeds alone that all measured rows of their column have.

    Seeds differ by more than many rows do: a mean over some says nothing beside one over others.
    """
    seeds: dict[str, set[int]] = {}
    for cell in cells:
        if own := {m.seed for m in cell.measurements}:
            seeds[cell.column.key] = seeds.get(cell.column.key, own) & own
    return [
        replace(cell, measurements=tuple(m for m in cell.measurements if m.seed in shared))
        for cell in cells
        for shared in [seeds.get(cell.column.key, set())]
    ]


def best_rows(
    cells: Iterable[TableCell], value: Callable[[TableCell], MeanStd | None]
) -> set[tuple[str, str]]:
    """Return (row, column) of the highest mean of each column that has two or more."""
    columns: dict[str, dict[str, float]] = {}
    for cell in cells:
        if (spread := value(cell)) is not None:
            row, column = cell.place
            columns.setdefault(column, {})[row] = spread.mean
    return {
        (row, column)
        for column, rows in columns.items()
        for row, mean in rows.items()
        if len(rows) > 1 and mean == max(rows.values())
    }


def _wanted(
    table: Table, row: Variant, column: Variant, defaults: Settings, changed: Settings
) -> dict[str, Scalar]:
    """Return the settings that a run of a cell has to have."""
    # Seconds do not depend on how pixels are scaled.
    free = _FREE | {"normalization"} if table.is_timed else _FREE
    own = {**defaults, **table.settings(row, column), **changed}
    config = RunConfig.from_run_config(own)
    return {key: value for key, value in config.to_mapping().items() if key not in free}


def _differences(
    measurement: Measurement, wanted: Mapping[str, Scalar]
) -> dict[str, tuple[Scalar, Scalar]]:
    """Return by key what a run was set to, and what a cell is, where these are not the same."""
    config = dict(measurement.config)
    # A folder of CIFAR-10's images stands for CIFAR-10; only a cell's label says that it is one.
    if wanted["dataset"] == "cifar10" and measurement.data.startswith("CIFAR-10 ("):
        config["dataset"] = "cifar10"
    # A setting that did not exist yet had its default.
    return {
        key: (config[key], value)
        for key, value in wanted.items()
        if key in config and config[key] != value
    }
