"""A sweep as a table with a line for each combination of settings, and pictures of it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
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
from fedif_studies.lab.measurements import ACCURACIES, PATHS, Measurement, last_ten_remarks, to_row
from fedif_studies.lab.panels import axes_of, plot_sweep, roles_of
from fedif_studies.lab.shown_figures import about_figures, shown_figures
from fedif_studies.lab.table import write_table
from fedif_studies.rows import add_rows


def report_sweep(
    name: str,
    measurements: Sequence[Measurement],
    folder: Path,
    console: Console,
    swept: Collection[str],
    more_remarks: Sequence[str] = (),
    planned: Sequence[Settings] = (),
) -> None:
    """Write and print a line per combination of the settings that differ.

    A column names the bounds on updates where strategies bring other ones: a lead may be theirs.

    Parameters
    ----------
    name : str
        The sweep.
    measurements : sequence of Measurement
        Its runs, one or more.
    folder : Path
        Its report goes there.
    console : Console
        Where it is shown.
    swept : collection of str
        The keys that were varied; others that differ follow from them.
    more_remarks : sequence of str
        What else is said of the cells.
    planned : sequence of mapping
        The settings of all cells, those without a run included: what they vary names each line.
    """
    axes = _axes_of(measurements, swept, planned)
    combinations: dict[tuple[Scalar, ...], list[Measurement]] = {}
    for measurement in sorted(measurements, key=lambda measurement: measurement.seed):
        values = tuple(measurement.config.get(axis, "") for axis in axes)
        combinations.setdefault(values, []).append(measurement)
    metrics = list(dict.fromkeys(measurement.metric for measurement in measurements))
    names_metric = len(metrics) > 1
    names_bounds = have_other_bounds(measurements, axes)
    lines = []
    rows = []
    for values, of_seeds in combinations.items():
        labels = [str(value) for value in values]
        first = of_seeds[0]
        line = list(labels)
        if names_bounds:
            line.append(bounds_and_whose(first.config))
        if names_metric:
            line.append(first.metric)
        lines.append([*line, str(len(of_seeds)), *shown_figures(of_seeds)])
        # A row has no paths; where they are an axis, they tell it from others.
        place = dict(zip(axes, labels, strict=True))
        rows += [{**to_row(measurement), **_paths_of(place)} for measurement in of_seeds]
    add_rows(folder / "results.csv", rows, anew=True)
    pictures = _draw_sweep(name, measurements, axes, folder)
    about = " ".join(dict.fromkeys(map(about_figures, measurements)))
    label_columns = list(axes)
    remarks = [about]
    if names_bounds:
        label_columns.append("bounds")
    if names_metric:
        label_columns.append("metric")
        remarks.append(f"The pictures show {metrics[0]} alone.")
    heading = [*label_columns, "seeds", *ACCURACIES.values(), "detection AUC"]
    table = ResultTable(name, heading, lines, num_labels=len(label_columns))
    remarks += [*last_ten_remarks(measurements), *more_remarks]
    write_table(table, folder, console, remarks, pictures)


def _axes_of(
    measurements: Sequence[Measurement], swept: Collection[str], planned: Sequence[Settings]
) -> list[str]:
    """Return the settings that tell the runs of a seed apart: those that were varied.

    One of which a single value is measured yet is among them: a line has to say whose it is. A run
    has some of them under another key: what ``own-settings`` holds, and settings of an entry point
    that are called by its object.
    """
    differing = varying(measurements, swept)
    varied = {*differing, *varying_in(planned, swept)}.intersection(swept)
    keys = dict.fromkeys(itertools.chain.from_iterable(run.config for run in measurements))
    axes = [key for key in keys if key in varied]
    for key in differing:
        if key not in axes and _differs_within(measurements, axes, key):
            axes.append(key)
    return axes


def _differs_within(measurements: Sequence[Measurement], axes: Sequence[str], key: str) -> bool:
    """Tell whether a setting differs among runs of one seed that have the same on all axes."""
    value_of: dict[tuple[str, ...], str] = {}
    for measurement in measurements:
        config = measurement.config
        place = tuple(repr(config.get(axis)) for axis in (*axes, "seed"))
        value = repr(config.get(key))
        if value_of.setdefault(place, value) != value:
            return True
    return False


def _draw_sweep(
    name: str, measurements: Sequence[Measurement], keys: Sequence[str], folder: Path
) -> list[Path]:
    """Draw a sweep over rounds, and along the axis with most numbers; return the pictures."""
    axes = axes_of(measurements, keys)
    along, over_rounds = roles_of(axes, over_rounds=False), roles_of(axes, over_rounds=True)
    by_axis = folder / "axes.png"
    by_round = folder / "accuracy.png"
    for earlier in (by_axis, by_round):  # Of a sweep of this name that had other axes.
        earlier.unlink(missing_ok=True)
    drawn = []
    if along != over_rounds:
        drawn.append((along, by_axis))
    drawn.append((over_rounds, by_round))
    return [path for roles, path in drawn if plot_sweep(measurements, axes, roles, path, name)]


def _paths_of(place: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in place.items() if key in PATHS}
