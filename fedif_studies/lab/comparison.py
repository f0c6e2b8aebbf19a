"""Named runs beside each other: what differs in their settings, and what came of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedif_flower.errors import ConfigError
from fedif_flower.run.results import UNFINISHED, Run
from fedif_flower.tables import ResultTable
from fedif_studies.lab.differences import bounds_and_whose, bounds_in_words, varying
from fedif_studies.lab.measurements import ACCURACIES, ACCURACY, Measurement, read_measurement
from fedif_studies.lab.shown_figures import shown_figures


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
    if len({bounds_in_words(measurement.config) for measurement in measurements}) > 1:
        columns["bounds"] = [bounds_and_whose(measurement.config) for measurement in measurements]
    lines = []
    for index, (name, measurement) in enumerate(zip(names_of(runs), measurements, strict=True)):
        differing = [values[index] for values in columns.values()]
        seconds = f"{measurement.figures.get('seconds', math.nan):.1f}"
        lines.append([name, *differing, *shown_figures([measurement]), seconds])
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
