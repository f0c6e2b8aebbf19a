"""A table of named runs: the settings in which they differ, and their results."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedif_flower.errors import ConfigError
from fedif_flower.run.results import UNFINISHED, Run
from fedif_flower.tables import ResultTable
from fedif_studies.lab.differences import bounds_and_whose, bounds_in_words, varying
from fedif_studies.lab.measurements import (
    ACCURACY,
    Measurement,
    configs_of,
    metrics_of,
    read_measurement,
)
from fedif_studies.lab.shown_figures import FIGURES, shown_figures


def compare(runs: Sequence[Run]) -> ResultTable:
    """Return a table with a line for each run: the settings that differ, and the results.

    Where runs have different bounds on updates, a column names the bounds and says which ones came
    with the strategy: a better result may be due to them.

    Raises
    ------
    ConfigError
        If a run is unfinished or never evaluated its model, or if runs have different metrics.
    """
    measurements = _comparable(runs)
    configs = configs_of(measurements)
    keys = varying(measurements)
    if len({config.get("seed", "") for config in configs}) > 1:
        keys.append("seed")
    names_bounds = len(set(map(bounds_in_words, configs))) > 1
    lines = []
    for name, measurement in zip(names_of(runs), measurements, strict=True):
        line = [name]
        line += [str(measurement.config.get(key, "")) for key in keys]
        if names_bounds:
            line.append(bounds_and_whose(measurement.config))
        line += shown_figures([measurement])
        line.append(f"{measurement.figures.get('seconds', math.nan):.1f}")
        lines.append(line)
    labels = ["run", *keys]
    if names_bounds:
        labels.append("bounds")
    heading = [*labels, *FIGURES, "s"]
    return ResultTable(_title_for(measurements[0].metric), heading, lines, num_labels=len(labels))


def _title_for(metric: str) -> str:
    """Return the title of a table of runs that are measured by this metric."""
    if metric == ACCURACY:
        return f"test {metric}, %"
    return f"test {metric}"


def _comparable(runs: Sequence[Run]) -> list[Measurement]:
    """Return the measurements of runs; raise ConfigError if they cannot be compared."""
    measurements = []
    for run in runs:
        measurement = read_measurement(run.folder.path) if run.summary else None
        if measurement is None:
            raise ConfigError(f"{run.name} {_why_not(run)}: it cannot be compared")
        measurements.append(measurement)
    if len(metrics_of(measurements)) > 1:
        by_run = []
        for run, measurement in zip(runs, measurements, strict=True):
            by_run.append(f"{run.name}: {measurement.metric}")
        raise ConfigError(f"the runs are measured by different metrics: {', '.join(by_run)}")
    return measurements


def _why_not(run: Run) -> str:
    """Return why a run has no measurement."""
    if not run.summary:
        return f"is {UNFINISHED}"
    return "never evaluated its model on a validation and a test split"


def names_of(runs: Sequence[Run]) -> list[str]:
    """Return the names of runs, or their paths if two runs have the same name."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        return [str(run.folder.path) for run in runs]
    return names
