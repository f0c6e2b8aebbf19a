"""Accuracy over rounds of each cell in the committed rows, for every fifth round.

A run's folder has every round, but folders are not committed. These rows are, so that the curve of
another run can be compared with them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedif_flower.run.rows import read_rows
from fedif_studies.lab.measurements import SPLITS, Measurement
from fedif_studies.paper.cells import TableCell
from fedif_studies.rows import replace_all_rows

EVERY = 5  # Every so many rounds have a row; the last round has one, too.
_KEY = ("row", "column", "seed", "gpu", "normalization", "revision")
Key = tuple[str, ...]
"""Identifies a curve by its values in the columns of ``_KEY``."""
Curve = Sequence[tuple[int, float]]
"""Pairs of a round and the accuracy after it, in [0, 1]."""


def path_of(docs: Path, table: str) -> Path:
    """Return the path of the file of a table's curves."""
    return docs / "results" / f"{table}-curves.csv"


def curve_rows(cells: Iterable[TableCell]) -> list[dict[str, str]]:
    """Return a row for every fifth round of each measurement that has a run's folder.

    A row has the columns ``row``, ``column``, ``seed``, ``gpu``, ``normalization`` and
    ``revision``, as the measurement's own row has them, the round, and the accuracies in [0, 1].
    """
    rows = []
    for cell in cells:
        for measurement in cell.measurements:
            key = dict(zip(_KEY, _key_of_curve(cell, measurement), strict=True))
            rows += [key | accuracies for accuracies in _thinned(measurement)]
    return rows


def _key_of_curve(cell: TableCell, measurement: Measurement) -> Key:
    """Return the key of a measurement's curve: its values in the columns of ``_KEY``."""
    return (
        cell.row.key,
        cell.column.key,
        str(measurement.seed),
        measurement.gpu,
        str(measurement.config.get("normalization", "")),
        measurement.revision,
    )


def _thinned(measurement: Measurement) -> list[dict[str, str]]:
    """Return the accuracies of every fifth round and of the last; none without a run's folder."""
    by_round: dict[int, dict[str, str]] = {}
    for split in SPLITS:
        for number, accuracy in measurement.curve(split):
            of_round = by_round.setdefault(number, {"round": str(number)})
            of_round[split] = f"{accuracy:.6f}"
    last = max(by_round, default=0)
    chosen = [number for number in by_round if number % EVERY == 0 or number == last]
    return [by_round[number] for number in sorted(chosen)]


def update_curves(path: Path, cells: Sequence[TableCell]) -> None:
    """Add the curves of new measurements to a table's file.

    An earlier curve stays there only if its measurement is still among those of the cells.

    Parameters
    ----------
    path : Path
        The CSV file.
    cells : sequence of TableCell
        All cells of the table, with new measurements, which have runs' folders, and with those of
        committed rows.
    """
    new_rows = curve_rows(cells)
    if not new_rows:
        return
    renewed = set(map(_key_of_row, new_rows))
    published = set()
    for cell in cells:
        published |= {_key_of_curve(cell, measurement) for measurement in cell.measurements}
    staying = []
    for row in read_rows(path):
        key = _key_of_row(row)
        if key in published and key not in renewed:
            staying.append(row)
    rows = [*staying, *new_rows]
    # By all of the key but its last value, the revision.
    rows.sort(key=lambda row: (_key_of_row(row)[:-1], int(row["round"])))
    replace_all_rows(path, rows)


def _key_of_row(row: Mapping[str, str]) -> Key:
    return tuple(row[name] for name in _KEY)


class Curves:
    """The test accuracies of a table's cells by round.

    Parameters
    ----------
    path : Path
        The CSV file; if it does not exist, no cell has a curve.
    """

    def __init__(self, path: Path) -> None:
        self._by_key: dict[Key, dict[int, float]] = {}
        for row in read_rows(path):
            curve = self._by_key.setdefault(_key_of_row(row), {})
            curve[int(row["round"])] = float(row["test"])

    def mean(self, cell: TableCell) -> Curve:
        """Return the mean curve over the cell's seeds that have one; empty if none has."""
        curves = []
        for measurement in cell.measurements:
            curve = self._by_key.get(_key_of_curve(cell, measurement))
            if curve:
                curves.append(curve)
        if not curves:
            return ()
        means = []
        for number in sorted(set.intersection(*map(set, curves))):
            accuracies = [curve[number] for curve in curves]
            means.append((number, statistics.fmean(accuracies)))
        return means
