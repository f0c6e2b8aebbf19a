"""Runs beside each other: named runs, and a sweep with a line for each combination."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.known_settings import STAGES_KEY
from fedif_flower.run.provenance import CODE
from fedif_flower.run.results import UNFINISHED, Run
from fedif_flower.settings import Scalar
from fedif_flower.strategies.config import configured_bounds, default_clipping
from fedif_flower.tables import ResultTable
from fedif_studies.lab.bounded import RULE
from fedif_studies.lab.measurements import (
    ACCURACIES,
    ACCURACY,
    PATHS,
    Measurement,
    last_ten_remarks,
    read_measurement,
    to_row,
)
from fedif_studies.lab.panels import axes_of, plot_sweep, roles_of
from fedif_studies.lab.table import MeanStd, write_table
from fedif_studies.rows import add_rows

_CLIPPING = "update-clipping"
Settings = Mapping[str, Scalar]


def compare(runs: Sequence[Run]) -> ResultTable:
    """Return complete runs beside each other: the settings that differ, and what came of them.

    Where one has bounds on its updates that another has not, a column names them, and says which
    came with the strategy: a lead may be theirs.

    Raises
    ------
    ConfigError
        If one is unfinished or never evaluated its model, or they have different metrics.
    """
    measurements = _comparable(runs)
    # What differs, by the column's name: each run's value.
    columns: dict[str, list[str]] = {}
    for key in varying(measurements):
        columns[key] = [str(measurement.config.get(key, "")) for measurement in measurements]
    seeds = [measurement.config.get("seed", "") for measurement in measurements]
    if len(set(seeds)) > 1:
        columns["seed"] = [str(seed) for seed in seeds]
    if len({_bounds(measurement.config) for measurement in measurements}) > 1:
        columns["bounds"] = [_bounds_and_whose(measurement.config) for measurement in measurements]
    lines = []
    for index, (name, measurement) in enumerate(zip(names_of(runs), measurements, strict=True)):
        differing = [values[index] for values in columns.values()]
        seconds = f"{measurement.figures.get('seconds', math.nan):.1f}"
        lines.append([name, *differing, *_figures([measurement]), seconds])
    heading = ["run", *columns, *ACCURACIES.values(), "detection AUC", "s"]
    metric = measurements[0].metric
    title = f"test {metric}"
    if metric == ACCURACY:
        title += ", %"
    return ResultTable(title, heading, lines, num_labels=1 + len(columns))


def _comparable(runs: Sequence[Run]) -> list[Measurement]:
    """Return what runs measured, or refuse those that cannot stand beside each other."""
    measurements = []
    for run in runs:
        measurement = read_measurement(run.folder.path) if run.summary else None
        if measurement is None:
            raise ConfigError(f"{run.name} {_why_not(run)}: it cannot be compared")
        measurements.append(measurement)
    metrics = [measurement.metric for measurement in measurements]
    if len(set(metrics)) > 1:
        named = zip(runs, metrics, strict=True)
        by_run = ", ".join(f"{run.name}: {metric}" for run, metric in named)
        raise ConfigError(f"the runs are measured by different metrics: {by_run}")
    return measurements


def _why_not(run: Run) -> str:
    """Return why a run without figures has none."""
    if not run.summary:
        return f"is {UNFINISHED}"
    return "never evaluated its model on a validation and a test split"


def names_of(runs: Sequence[Run]) -> list[str]:
    """Return what runs are called beside each other: by their paths where names are the same."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        return [str(run.folder.path) for run in runs]
    return names


def _bounds(settings: Mapping[str, Any]) -> str:
    """Return the bounds that a run had on its updates."""
    if STAGES_KEY in settings:  # Of an app of its own.
        return str(settings[STAGES_KEY])
    strategy = str(settings["strategy"])
    stages = list(map(repr, configured_bounds(strategy, _clipping(settings))))
    if strategy == RULE and settings["rule.bounds"] != "none":
        stages.insert(0, f"rule.bounds = {settings['rule.bounds']}")
    return " + ".join(stages) or "none"


def _bounds_and_whose(settings: Mapping[str, Any]) -> str:
    """Return the bounds that a run had, and whether they came with its strategy."""
    words = _bounds(settings)
    strategy = str(settings.get("strategy", ""))
    if STAGES_KEY in settings or (strategy == RULE and settings["rule.bounds"] != "none"):
        return words
    if _clipping(settings) == default_clipping(strategy):
        words += ", by default"
    return words


def _clipping(settings: Mapping[str, Any]) -> float:
    return float(settings.get(_CLIPPING, 0.0))


def _have_other_bounds(measurements: Iterable[Measurement], axes: Collection[str]) -> bool:
    """Tell whether runs differ in their bounds by more than the axes say."""
    bounds: dict[float | None, set[str]] = {}
    for measurement in measurements:
        clipping = _clipping(measurement.config) if _CLIPPING in axes else None
        bounds.setdefault(clipping, set()).add(_bounds(measurement.config))
    return any(len(different) > 1 for different in bounds.values())


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
    names_bounds = _have_other_bounds(measurements, axes)
    lines = []
    rows = []
    for values, of_seeds in combinations.items():
        labels = [str(value) for value in values]
        first = of_seeds[0]
        line = list(labels)
        if names_bounds:
            line.append(_bounds_and_whose(first.config))
        if names_metric:
            line.append(first.metric)
        lines.append([*line, str(len(of_seeds)), *_figures(of_seeds)])
        # A row has no paths; where they are an axis, they tell it from others.
        place = dict(zip(axes, labels, strict=True))
        rows += [{**to_row(measurement), **_paths_of(place)} for measurement in of_seeds]
    add_rows(folder / "results.csv", rows, anew=True)
    pictures = _draw_sweep(name, measurements, axes, folder)
    about = " ".join(dict.fromkeys(map(_about, measurements)))
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
    varied = {*differing, *_varying_in(planned, swept)}.intersection(swept)
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


def varying(measurements: Sequence[Measurement], swept: Collection[str] = ()) -> list[str]:
    """Return the settings, the seed aside, in which those runs differ that have them.

    Where a run wrote and read counts only if it is one of the keys that were ``swept``: another
    folder has other data then.
    """
    return _varying_in([measurement.config for measurement in measurements], swept)


def _varying_in(configs: Sequence[Settings], swept: Collection[str]) -> list[str]:
    """Return the settings in which those configs differ that have them; see :func:`varying`."""
    keys = dict.fromkeys(itertools.chain.from_iterable(configs))
    # That a run took the place of another is no part of what it measured either.
    ignored = {*PATHS}.difference(swept) | {"overwrite", "seed", STAGES_KEY}
    return [key for key in keys if key not in ignored and _varies(key, configs)]


def _varies(key: str, configs: Sequence[Settings]) -> bool:
    """Return whether a setting differs; a section's key counts where the section was chosen."""
    if "." in key:
        configs = [config for config in configs if key in config]
    return len({repr(config.get(key)) for config in configs}) > 1


def _figures(measurements: Sequence[Measurement]) -> list[str]:
    """Return the accuracies of runs, in percent, and how well weights tell malicious clients."""
    in_percent = measurements[0].metric == ACCURACY
    scale = 100 if in_percent else 1
    form = ".2f" if in_percent else ".4g"
    figures = []
    for name in ACCURACIES:
        values = [scale * measurement.figures[f"test-{name}"] for measurement in measurements]
        figures.append(MeanStd.of(values).shown(form))
    figures.append(_detection(measurements))
    return figures


def _detection(measurements: Sequence[Measurement]) -> str:
    """Return the detection AUC of runs, and of how many it is where some drew nobody malicious."""
    all_figures = [measurement.figures for measurement in measurements]
    aucs = [named["detection-auc"] for named in all_figures if "detection-auc" in named]
    if not aucs:
        return "-"
    shown = MeanStd.of(aucs).shown(".3f")
    if len(aucs) < len(measurements):
        shown += f" ({len(aucs)} of {len(measurements)} seeds)"
    return shown


def other_origins(measurements: Sequence[Measurement]) -> list[str]:
    """Return what else than settings may be behind differences of runs: their data and code.

    What a run left no record of is not compared. A task may draw its data from the seed, so data
    are compared among runs of one seed.
    """
    data_by_seed: dict[object, set[str]] = {}
    versions = set()
    for measurement in measurements:
        origin = _origin_of(measurement)
        if "data_fingerprint" in origin:
            of_seed = data_by_seed.setdefault(measurement.config.get("seed"), set())
            of_seed.add(origin["data_fingerprint"])
        if CODE in origin:
            versions.add(origin[CODE])
    remarks = []
    most = max((len(fingerprints) for fingerprints in data_by_seed.values()), default=0)
    if most > 1:
        remarks.append(f"Not all runs had the same data: there are {most} different sets of them.")
    if len(versions) > 1:
        remarks.append(f"Not all runs were made by the same code: {len(versions)} versions of it.")
    return remarks


def _origin_of(measurement: Measurement) -> dict[str, Any]:
    """Return where a run's result comes from, as far as it wrote that down."""
    if measurement.run_dir is None:
        return {}
    return RunFolder(measurement.run_dir).provenance.read_if_there()


def direction(measurements: Sequence[Measurement]) -> list[str]:
    """Return whether a task's own metrics are to be high or low; nothing of accuracies."""
    of_tasks = [measured for measured in measurements if measured.metric != ACCURACY]
    return list(dict.fromkeys(map(_about, of_tasks)))


def _about(measurement: Measurement) -> str:
    """Return what a table's figures are."""
    if measurement.metric == ACCURACY:
        return "Test accuracies in percent."
    better = "higher" if measurement.higher_is_better else "lower"
    return f"Test {measurement.metric}; {better} is better."
