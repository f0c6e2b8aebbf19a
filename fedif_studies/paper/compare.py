"""Measured cells beside the paper's: means over seeds, differences, the best of each column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedif_flower.run.config import RunConfig
from fedif_flower.settings import Scalar
from fedif_studies.lab.measurements import PATHS, Measurement
from fedif_studies.lab.table import MeanStd
from fedif_studies.paper.figures import PaperFigure
from fedif_studies.paper.tables import Settings, Table, Variant

# Free in a table: what changes neither protocol nor method.
_FREE = {*PATHS, "seed", "num-server-rounds", "device", "threads-per-client"}
_FREE |= {"max-failed-rounds", "min-valid-replies", "eval-every"}


@dataclass(frozen=True)
class TableCell:
    """A cell of a table, measured or not.

    Attributes
    ----------
    row, column : Variant
        Where it is.
    measurements : tuple of Measurement
        One for each seed, all of the same number of rounds; empty: missing.
    paper : tuple of float and float or None
        The paper's value and standard deviation.
    """

    row: Variant
    column: Variant
    measurements: tuple[Measurement, ...]
    paper: PaperFigure | None

    def accuracy(self, split: str, figure: str) -> MeanStd | None:
        """Return an accuracy in percent; ``None`` if the cell is missing."""
        values = [100 * getattr(getattr(m, split), figure) for m in self.measurements]
        return MeanStd.of(values) if values else None

    def figure(self, name: str) -> MeanStd | None:
        """Return seconds or counts; ``None`` where no measurement has them."""
        values = [m.figures[name] for m in self.measurements if name in m.figures]
        return MeanStd.of(values) if values else None


def fill_table(
    table: Table,
    measurements: Iterable[Measurement],
    defaults: Settings,
    rounds: int | None = None,
) -> list[TableCell]:
    """Return every cell of a table, column by column, with the measurements that belong to it.

    Parameters
    ----------
    table : Table
        The table.
    measurements : iterable of Measurement
        Any runs; those with other settings than a cell's are left out.
    defaults : Mapping[str, Scalar]
        A complete run config, for everything that the table leaves open.
    rounds : int, optional
        Only runs of so many rounds; ``None``: of the table's own number.
    """
    fitting = [m for m in measurements if m.rounds == (rounds or table.rounds)]
    cells = []
    for column in table.columns:
        for row in table.rows:
            wanted = _wanted({**defaults, **table.settings(row, column)})
            of_seed = {m.seed: m for m in fitting if _belongs(m, wanted)}
            found = tuple(of_seed[seed] for seed in sorted(of_seed))
            paper = table.paper.get(row.key, {}).get(column.key)
            cells.append(TableCell(row, column, found, paper))
    return cells


def best_rows(cells: Iterable[TableCell], split: str, figure: str) -> set[tuple[str, str]]:
    """Return (row, column) of the highest mean of each column with two or more measured rows."""
    columns: dict[str, dict[str, float]] = {}
    for cell in cells:
        if (spread := cell.accuracy(split, figure)) is not None:
            columns.setdefault(cell.column.key, {})[cell.row.key] = spread.mean
    return _highest(columns)


def best_paper_rows(cells: Iterable[TableCell]) -> set[tuple[str, str]]:
    """Return (row, column) of the paper's highest value of each column."""
    columns: dict[str, dict[str, float]] = {}
    for cell in cells:
        if cell.paper is not None:
            columns.setdefault(cell.column.key, {})[cell.row.key] = cell.paper[0]
    return _highest(columns)


def _highest(columns: Mapping[str, Mapping[str, float]]) -> set[tuple[str, str]]:
    return {
        (row, column)
        for column, rows in columns.items()
        if len(rows) > 1
        for row, value in rows.items()
        if value == max(rows.values())
    }


def _wanted(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    config = RunConfig.from_run_config(settings).to_mapping()
    return {key: value for key, value in config.items() if key not in _FREE}


def _belongs(measurement: Measurement, wanted: Mapping[str, Scalar]) -> bool:
    config = dict(measurement.config)
    # A folder of CIFAR-10's images stands for CIFAR-10; only a cell's label says that it is one.
    if wanted["dataset"] == "cifar10" and measurement.data.startswith("CIFAR-10 ("):
        config["dataset"] = "cifar10"
    # A setting that did not exist yet had its default.
    return all(config.get(key, value) == value for key, value in wanted.items())
