"""The report of a sweep: a table with a line for each combination of settings, and pictures."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_studies.lab.differences import (
    Settings,
    bounds_and_whose,
    have_other_bounds,
    varying,
    varying_in,
)
from fedif_studies.lab.measurements import (
    PATHS,
    Measurement,
    configs_of,
    last_ten_remarks,
    metrics_of,
    to_row,
)
from fedif_studies.lab.panels import axes_of, plot_sweep, roles_of
from fedif_studies.lab.shown_figures import FIGURES, about_figures, shown_figures
from fedif_studies.lab.table import Column, grouped, write_table
from fedif_studies.rows import replace_all_rows


def report_sweep(
    name: str,
    measurements: Sequence[Measurement],
    folder: Path,
    console: Console,
    swept: Collection[str],
    more_remarks: Sequence[str] = (),
    planned: Sequence[Settings] = (),
) -> None:
    """Write and print a table of a sweep, with a line per combination of settings, and draw it.

    Where strategies bring different bounds on updates, a column names the bounds: a better result
    may be due to them.

    Parameters
    ----------
    name : str
        The sweep's name.
    measurements : sequence of Measurement
        Its runs, one or more.
    folder : Path
        The folder of the report.
    console : Console
        Where the table is printed.
    swept : collection of str
        The keys that the sweep's file varies. Other settings may differ as a consequence.
    more_remarks : sequence of str
        Further remarks, below the table.
    planned : sequence of mapping
        The settings of all cells, including those without a run. A key that varies among them is
        a column of the table, even if all runs so far have the same value.
    """
    axes = _axes_of(measurements, swept, planned)
    by_seed = sorted(measurements, key=lambda measurement: measurement.seed)
    combinations = grouped(by_seed, lambda run: _values_on(axes, run.config)).values()
    rows = []
    for runs in combinations:
        rows += [_row_of(run, axes) for run in runs]
    replace_all_rows(folder / "results.csv", rows)
    pictures = _draw_sweep(name, measurements, axes, folder)
    remarks = [" ".join(dict.fromkeys(map(about_figures, measurements)))]
    metrics = metrics_of(measurements)
    if len(metrics) > 1:
        remarks.append(f"The pictures show {metrics[0]} alone.")
    remarks += [*last_ten_remarks(measurements), *more_remarks]
    table = _sweep_table(name, combinations, _labels(measurements, axes))
    write_table(table, folder, console, remarks, pictures)


def _labels(measurements: Sequence[Measurement], axes: Sequence[str]) -> list[Column[Measurement]]:
    """Return the columns that name a line; each takes its text from one of the line's runs."""
    labels: list[Column[Measurement]] = [(axis, partial(_label_on, axis)) for axis in axes]
    if have_other_bounds(measurements, axes):
        labels.append(("bounds", lambda run: bounds_and_whose(run.config)))
    if len(metrics_of(measurements)) > 1:
        labels.append(("metric", lambda run: run.metric))
    return labels


def _sweep_table(
    name: str,
    combinations: Iterable[Sequence[Measurement]],
    labels: Sequence[Column[Measurement]],
) -> ResultTable:
    """Return a table with a line for each combination of settings, and the figures of its runs."""
    lines = []
    for runs in combinations:
        line = [label(runs[0]) for _, label in labels]
        lines.append([*line, str(len(runs)), *shown_figures(runs)])
    heading = [*(title for title, _ in labels), "seeds", *FIGURES]
    return ResultTable(name, heading, lines, num_labels=len(labels))


def _values_on(axes: Iterable[str], config: Settings) -> tuple[Scalar, ...]:
    """Return a run's values on the axes; empty for a setting that only other strategies have."""
    return tuple(config.get(axis, "") for axis in axes)


def _label_on(axis: str, measurement: Measurement) -> str:
    """Return a run's value on an axis as text."""
    return str(measurement.config.get(axis, ""))


def _row_of(measurement: Measurement, axes: Iterable[str]) -> dict[str, str]:
    """Return a run's row. Of the settings in ``PATHS`` it has only those that are an axis."""
    row = to_row(measurement)
    for axis in axes:
        if axis in PATHS:
            row[axis] = _label_on(axis, measurement)
    return row


def _axes_of(
    measurements: Sequence[Measurement], swept: Collection[str], planned: Sequence[Settings]
) -> list[str]:
    """Return the settings that tell runs of the same seed apart.

    First come the swept keys that vary among the runs or the planned cells. But a run may store a
    swept setting under another key: the file may give it in ``own-settings``, or as a setting of
    an entry point. Therefore other settings follow that still differ among runs with the same seed
    and the same values of the settings before.
    """
    differing = varying(measurements, swept)
    varied = {*differing, *varying_in(planned, swept)}.intersection(swept)
    keys = dict.fromkeys(itertools.chain.from_iterable(configs_of(measurements)))
    axes = [key for key in keys if key in varied]
    for key in differing:
        if key not in axes and _differs_within(measurements, axes, key):
            axes.append(key)
    return axes


def _differs_within(measurements: Sequence[Measurement], axes: Sequence[str], key: str) -> bool:
    """Tell whether a setting differs among runs with the same seed and the same values on axes."""
    value_of: dict[tuple[str, ...], str] = {}
    for config in configs_of(measurements):
        place = tuple(repr(config.get(axis)) for axis in (*axes, "seed"))
        value = repr(config.get(key))
        if value_of.setdefault(place, value) != value:
            return True
    return False


def _draw_sweep(
    name: str, measurements: Sequence[Measurement], keys: Sequence[str], folder: Path
) -> list[Path]:
    """Draw a sweep over rounds, and along its axis with most numbers; return the files' paths."""
    axes = axes_of(measurements, keys)
    along = roles_of(axes, over_rounds=False)
    over_rounds = roles_of(axes, over_rounds=True)
    by_axis = folder / "axes.png"
    by_round = folder / "accuracy.png"
    for earlier in (by_axis, by_round):  # An earlier sweep with this name may have had other axes.
        earlier.unlink(missing_ok=True)
    drawn = []
    if along != over_rounds:
        drawn.append((along, by_axis))
    drawn.append((over_rounds, by_round))
    return [path for roles, path in drawn if plot_sweep(measurements, axes, roles, path, name)]
