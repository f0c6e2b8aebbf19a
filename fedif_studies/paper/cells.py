"""The cells of the paper's tables: which to run, and which measurements belong to each."""

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
from fedif_flower.words import listed
from fedif_studies.lab.cells import Cell, find_data, make_cell
from fedif_studies.lab.measurements import PATHS, Measurement, figures_of
from fedif_studies.lab.table import MeanStd
from fedif_studies.paper.tables import PaperTable, Settings, Variant

# Settings in which a run may differ from its cell: they change neither protocol nor method.
_FREE = {
    *PATHS,
    "seed",
    "num-server-rounds",
    "device",
    "threads-per-client",
    "max-failed-rounds",
    "min-valid-replies",
    # An examination of held-out labels changes nothing by itself: it is only reported.
    "validation.vet",
    "validation.seconds",
}
# Parts that a run of a cell must not have, since they change its result. In a timed table, it must
# not have those either that cost time.
_WITHOUT: Settings = MappingProxyType({"masking.mode": "off", "evidence.require-signatures": False})
_TIMED_WITHOUT: Settings = MappingProxyType(
    {"evidence.receipts": False, "gradients.publish": False}
)
_MOST_SHOWN = 3  # At most so many settings are named in which a run differs from a cell.

CellKey = tuple[str, str]
"""The keys of a cell's row and column."""
Differences = dict[str, tuple[Scalar, Scalar]]
"""The settings in which a run and a cell differ, by key: the run's value, and the cell's."""


class Place(NamedTuple):
    """The place of a run in a table."""

    row: Variant
    column: Variant
    seed: int


def cell_name(row: Variant, column: Variant, seed: int) -> str:
    """Return the name of a cell: ``<column>_<row>_seed<seed>``."""
    return f"{column.key}_{row.key}_seed{seed}"


def select(
    table: PaperTable, methods: Sequence[str] = (), patterns: Sequence[str] = (), seeds: int = 1
) -> list[Place]:
    """Return the places (row, column, seed) that a user asks for: seed by seed, row by row.

    Parameters
    ----------
    table : PaperTable
        The table.
    methods : sequence of str
        The keys of rows, in the order of the result; empty for all rows.
    patterns : sequence of str
        Shell patterns for a cell's name, with or without the seed, or for its column's key; empty
        for all cells.
    seeds : int
        How many seeds: 0 to ``seeds - 1``.

    Raises
    ------
    ConfigError
        If a row is unknown, or no cell fits.
    """
    rows = {row.key: row for row in table.rows}
    for name in methods:
        require(name in rows, "methods", name, f"in table {table.name!r}: {', '.join(rows)}")

    chosen_rows = [rows[name] for name in methods or rows]
    chosen = []
    for seed, row, column in product(range(seeds), chosen_rows, table.columns):
        place = Place(row, column, seed)
        if not patterns or _fits(place, patterns):
            chosen.append(place)
    example = cell_name(table.rows[0], table.columns[0], 0)
    allowed = f"a cell's name in table {table.name!r}, such as {example!r}"
    require(bool(chosen), "cells", ", ".join(patterns), allowed)
    return chosen


def _fits(place: Place, patterns: Sequence[str]) -> bool:
    """Return whether a pattern fits a cell's name, with or without its seed, or its column."""
    row, column, seed = place
    names = (cell_name(row, column, seed), f"{column.key}_{row.key}", column.key)
    return any(fnmatchcase(name, pattern) for name, pattern in product(names, patterns))


def table_cells(
    chosen: Iterable[tuple[PaperTable, Sequence[Place]]],
    defaults: Settings,
    output_dir: Path,
    rounds: int | None = None,
    data_dir: str = "",
) -> list[Cell]:
    """Return cells of tables, ready to run, seed by seed.

    Parameters
    ----------
    chosen : iterable of tuple
        Each table, and the places in it that :func:`select` returned.
    defaults : Mapping[str, Scalar]
        A complete run config: the values of all settings that a table does not set.
    output_dir : Path
        Results go to ``<output_dir>/<table>/``.
    rounds : int, optional
        The number of rounds, instead of the table's own.
    data_dir : str
        The folder of the data sets.
    """
    places: list[tuple[PaperTable, Place]] = []
    for table, places_of_table in chosen:
        places += product([table], places_of_table)
    places.sort(key=lambda pair: pair[1].seed)  # The sort is stable: a seed's places stay in order.
    cells = []
    for table, (row, column, seed) in places:
        settings = {**defaults, **table.settings(row, column), "seed": seed}
        settings["num-server-rounds"] = rounds or table.rounds
        data_settings, data = find_data(str(settings["dataset"]), data_dir)
        name = cell_name(row, column, seed)
        settings |= data_settings
        cell = make_cell(table.name, name, settings, output_dir, data, is_timed=table.is_timed)
        cells.append(cell)
    return cells


@dataclass(frozen=True)
class TableCell:
    """A cell of a table, measured or not.

    Attributes
    ----------
    row, column : Variant
        Its row and its column.
    measurements : tuple of Measurement
        One measurement for each seed, all with the same number of rounds; empty if none is there.
    paper : MeanStd, optional
        The paper's value and standard deviation.
    gpu : str
        The GPU that measured it; empty if a CPU did. The measurements of a GPU stand in a line of
        their own.
    """

    row: Variant
    column: Variant
    measurements: tuple[Measurement, ...]
    paper: MeanStd | None
    gpu: str = ""

    @property
    def key(self) -> CellKey:
        """Its row and its column, whether a CPU or a GPU measured it."""
        return self.row.key, self.column.key

    @property
    def line_key(self) -> CellKey:
        """Its line and its column; the line is its row with the GPU that measured it, if any."""
        return f"{self.row.key} {self.gpu}".strip(), self.column.key

    @property
    def title(self) -> str:
        """The title of its line."""
        if not self.gpu:
            return self.row.title
        return f"{self.row.title} ({self.gpu})"

    def mean(self, name: str, scale: int = 1) -> MeanStd | None:
        """Return a figure's mean over seeds, times ``scale``; ``None`` if no run has the figure."""
        values = [scale * figure for figure in figures_of(self.measurements, name)]
        if not values:
            return None
        return MeanStd.of(values)


def keys_of(cells: Iterable[TableCell]) -> set[CellKey]:
    """Return the keys of cells; a cell that both a CPU and a GPU measured has one key."""
    return {cell.key for cell in cells}


def with_measurements(cells: Iterable[TableCell]) -> list[TableCell]:
    """Return the cells that were measured."""
    return [cell for cell in cells if cell.measurements]


def of_column(cells: Iterable[TableCell], column: Variant) -> list[TableCell]:
    """Return the cells of a column, in their order."""
    return [cell for cell in cells if cell.column.key == column.key]


def fill_table(
    table: PaperTable,
    measurements: Iterable[Measurement],
    defaults: Settings,
    rounds: int | None = None,
    changed: Settings = MappingProxyType({}),
) -> list[TableCell]:
    """Return every cell of a table, column by column, with the measurements that belong to it.

    The measurements of a GPU make a cell of their own, after the CPU's.

    Parameters
    ----------
    table : PaperTable
        The table.
    measurements : iterable of Measurement
        Any runs; those that have no cell's settings are left out.
    defaults : Mapping[str, Scalar]
        A complete run config: the values of all settings that the table does not set.
    rounds : int, optional
        The number of rounds of the runs; by default, the table's own. With another number, cells
        of accuracies do not have the paper's figures, which could not be compared.
    changed : Mapping[str, Scalar]
        Settings that replace those of the cells.
    """
    length = rounds or table.rounds
    # Seconds are per round, so they can be compared after any number of rounds.
    compared = table.is_timed or length == table.rounds
    fitting = [run for run in measurements if run.rounds == length and _is_for(run, table)]
    cells = []
    for column, row in product(table.columns, table.rows):
        settings = _settings_of(table, row, column, defaults, changed)
        paper = None
        if compared:
            paper = table.printed(row, column)
        by_gpu = _by_gpu(fitting, settings)
        for gpu in sorted(by_gpu):
            of_seeds = _last_of_each_seed(by_gpu[gpu])
            cells.append(TableCell(row, column, of_seeds, paper, gpu))
    return cells


def _by_gpu(
    measurements: Iterable[Measurement], settings: Mapping[str, Scalar]
) -> dict[str, list[Measurement]]:
    """Return the measurements with a cell's settings, by GPU; those of a CPU are under ``""``.

    They are kept apart since a GPU rounds differently, and takes other times.
    """
    by_gpu: dict[str, list[Measurement]] = {"": []}
    for measurement in measurements:
        if not _differences(measurement, settings):
            by_gpu.setdefault(measurement.gpu, []).append(measurement)
    return by_gpu


def _last_of_each_seed(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Return the last measurement of each seed, in the order of seeds; new results come last."""
    by_seed = {measurement.seed: measurement for measurement in measurements}
    return tuple(by_seed[seed] for seed in sorted(by_seed))


def measured_or_missing(cells: Sequence[TableCell]) -> list[TableCell]:
    """Return cells, less those that no CPU has measured but a GPU has."""
    measured_by_gpu = {cell.key for cell in cells if cell.gpu}
    return [cell for cell in cells if cell.measurements or cell.key not in measured_by_gpu]


def measurements_of(cells: Iterable[TableCell]) -> list[Measurement]:
    """Return the measurements of all cells, cell by cell."""
    measurements: list[Measurement] = []
    for cell in cells:
        measurements += cell.measurements
    return measurements


class CellSettings(NamedTuple):
    """A cell, and the settings that a run needs to belong to it."""

    table: PaperTable
    row: Variant
    column: Variant
    settings: Mapping[str, Scalar]


def settings_of_cells(
    tables: Iterable[PaperTable], defaults: Settings, changed: Settings = MappingProxyType({})
) -> list[CellSettings]:
    """Return every cell of tables twice: with its own settings, and with ``changed`` in them.

    Parameters
    ----------
    tables : iterable of PaperTable
        The tables of the cells.
    defaults : Mapping[str, Scalar]
        A complete run config: the values of all settings that a table does not set.
    changed : Mapping[str, Scalar]
        Settings that a run may have instead of a cell's own.
    """
    cells = []
    for table in tables:
        for row, column, instead in product(table.rows, table.columns, ({}, changed)):
            settings = _settings_of(table, row, column, defaults, instead)
            cells.append(CellSettings(table, row, column, settings))
    return cells


def why_in_no_cell(measurement: Measurement, cells: Sequence[CellSettings]) -> str:
    """Return how a run differs from the nearest cell; empty if the run belongs to a cell.

    Parameters
    ----------
    measurement : Measurement
        The run.
    cells : sequence of CellSettings
        The cells to which it might belong, one or more.
    """
    compared = []
    for cell in cells:
        differences = _differences(measurement, cell.settings)
        if not _is_for(measurement, cell.table):
            differences["table"] = (measurement.group, cell.table.name)
        if measurement.rounds != cell.table.rounds:
            differences["num-server-rounds"] = (measurement.rounds, cell.table.rounds)
        if not differences:
            return ""
        compared.append((cell, differences))
    nearest, differences = min(compared, key=lambda pair: len(pair[1]))
    phrases = []
    for key, (setting, cell_setting) in differences.items():
        phrases.append(f"{key}, {cell_setting!r} there and {setting!r} in the run")
    return (
        f"The nearest cell (table {nearest.table.name}, row {nearest.row.key}, column "
        f"{nearest.column.key}) differs in {listed(phrases, most=_MOST_SHOWN)}"
    )


def of_shared_seeds(cells: Sequence[TableCell]) -> list[TableCell]:
    """Return cells with only those seeds that all measured rows of their column have.

    Accuracies often differ more between seeds than between rows. Therefore only means over the same
    seeds are compared.
    """
    shared: dict[str, set[int]] = {}  # The seeds, by column.
    for cell in with_measurements(cells):
        column = cell.column.key
        seeds = {measurement.seed for measurement in cell.measurements}
        shared[column] = shared.get(column, seeds) & seeds
    comparable = []
    for cell in cells:
        shared_seeds = shared.get(cell.column.key, set())
        measurements = tuple(m for m in cell.measurements if m.seed in shared_seeds)
        comparable.append(replace(cell, measurements=measurements))
    return comparable


def best_of_the_paper(table: PaperTable) -> set[CellKey]:
    """Return the (row, column) of the highest figure that the paper prints in each column.

    All rows of the paper's table count, whether they were measured here or not.
    """
    cells = []
    for column, row in product(table.columns, table.rows):
        cells.append(TableCell(row, column, (), table.printed(row, column)))
    return best_rows(cells, lambda cell: cell.paper)


def best_rows(
    cells: Iterable[TableCell], value: Callable[[TableCell], MeanStd | None]
) -> set[CellKey]:
    """Return the (line, column) of the highest mean in each column that has two or more means.

    Means are compared at two decimals, as tables show them, so several may be the highest.
    """
    means: dict[str, dict[CellKey, float]] = {}  # By column, then by (line, column).
    for cell in cells:
        figure = value(cell)
        if figure is not None:
            means_of_column = means.setdefault(cell.column.key, {})
            means_of_column[cell.line_key] = round(figure.mean, 2)
    best = set()
    for means_of_column in means.values():
        if len(means_of_column) < 2:
            continue
        highest = max(means_of_column.values())
        best |= {key for key, mean in means_of_column.items() if mean == highest}
    return best


def _settings_of(
    table: PaperTable, row: Variant, column: Variant, defaults: Settings, changed: Settings
) -> dict[str, Scalar]:
    """Return the settings that a run needs to belong to a cell."""
    free = set(_FREE)
    without = dict(_WITHOUT)
    if table.is_timed:
        without |= _TIMED_WITHOUT
        free.add("normalization")  # Seconds do not depend on how pixels are scaled.
        free.remove("threads-per-client")  # Seconds do depend on a client's number of threads.
    every_setting = {**defaults, **table.settings(row, column), **changed}
    config = RunConfig.from_run_config(every_setting).to_mapping()
    return {key: value for key, value in config.items() if key not in free} | without


def _is_for(measurement: Measurement, table: PaperTable) -> bool:
    """Tell whether a run may belong to a cell of a table.

    A timed table takes only runs that were made for it, or for no table: runs for other tables may
    have run several at a time.
    """
    return not table.is_timed or measurement.group in ("", table.name)


def _differences(measurement: Measurement, settings: Mapping[str, Scalar]) -> Differences:
    """Return the settings in which a run differs from a cell."""
    config = dict(measurement.config)
    # A run on CIFAR-10 as a folder of images has dataset = "image-folder". Only the name of its
    # data, which comes from the cell's label, says that this is CIFAR-10.
    if settings["dataset"] == "cifar10" and measurement.data.startswith("CIFAR-10 ("):
        config["dataset"] = "cifar10"
    differences = {}
    for key, value in settings.items():
        # A setting that a run lacks did not exist when it ran, nor did what the setting changes.
        if key in config and config[key] != value:
            differences[key] = (config[key], value)
    return differences
