"""Runs beside each other: named runs, and a sweep with a line for each combination."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedif_flower.errors import ConfigError
from fedif_flower.run.results import UNFINISHED, Run
from fedif_flower.run.writer import STAGES_KEY
from fedif_flower.settings import Scalar
from fedif_flower.strategies.config import configured_bounds, default_clipping
from fedif_flower.tables import ResultTable
from fedif_studies.lab.curves import plot_curves
from fedif_studies.lab.measurements import (
    ACCURACIES,
    ACCURACY,
    PATHS,
    Measurement,
    read_measurement,
    to_row,
)
from fedif_studies.lab.table import MeanStd, write_table
from fedif_studies.rows import add_rows


def compare(runs: Sequence[Run]) -> ResultTable:
    """Return complete runs beside each other: the settings that differ, and what came of them.

    Where one has bounds on its updates that another has not, a column names them, and says which
    came with the strategy: a lead may be theirs.

    Raises
    ------
    ConfigError
        If one is unfinished or never evaluated its model, or they have different metrics.
    """
    measured = []
    for run in runs:
        found = read_measurement(run.folder.path) if run.summary else None
        if found is None:
            raise ConfigError(f"{run.name} {_why_not(run)}: it cannot be compared")
        measured.append(found)
    if len({m.metric for m in measured}) > 1:
        metrics = ", ".join(f"{r.name}: {m.metric}" for r, m in zip(runs, measured, strict=True))
        raise ConfigError(f"the runs are measured by different metrics: {metrics}")
    differ = varying(measured)
    if len({m.config.get("seed") for m in measured}) > 1:
        differ.append("seed")
    bounds = [_bounds(one.config) for one in measured]
    bounded = ["bounds"] if len(set(bounds)) > 1 else []
    heading = ["run", *differ, *bounded, *ACCURACIES.values(), "detection AUC", "s"]
    lines = []
    for name, one, bound in zip(names_of(runs), measured, bounds, strict=True):
        settings = [str(one.config.get(key, "")) for key in differ] + [bound] * len(bounded)
        seconds = f"{one.figures.get('seconds', math.nan):.1f}"
        lines.append([name, *settings, *_figures([one]), seconds])
    title = f"test {measured[0].metric}" + (", %" if measured[0].metric == ACCURACY else "")
    return ResultTable(title, heading, lines, num_labels=1 + len(differ) + len(bounded))


def _why_not(run: Run) -> str:
    """Return why a run without figures has none."""
    if not run.summary:
        return f"is {UNFINISHED}"
    return "never evaluated its model on a validation and a test split"


def names_of(runs: Sequence[Run]) -> list[str]:
    """Return what runs are called beside each other: by their paths where names are the same."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder.path) for run in runs]


def _bounds(settings: Mapping[str, Any]) -> str:
    """Return the bounds that a run had on its updates, and whether they are its strategy's own."""
    if STAGES_KEY in settings:  # Of an app of its own.
        return str(settings[STAGES_KEY])
    strategy, clipping = str(settings["strategy"]), float(settings.get("update-clipping", 0.0))
    stages = " + ".join(map(repr, configured_bounds(strategy, clipping))) or "none"
    return stages + (", by default" if clipping == default_clipping(strategy) else "")


def report_sweep(
    name: str,
    measurements: Sequence[Measurement],
    folder: Path,
    console: Console,
    swept: Collection[str],
) -> None:
    """Write and print a line per combination of the settings that differ.

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
    """
    axes = [key for key in varying(measurements) if key in swept]
    points: dict[tuple[Scalar, ...], list[Measurement]] = {}
    for one in sorted(measurements, key=lambda m: m.seed):
        points.setdefault(tuple(one.config.get(axis, "") for axis in axes), []).append(one)
    heading = [*axes, "seeds", *ACCURACIES.values(), "detection AUC"]
    lines = [[*map(str, p), str(len(found)), *_figures(found)] for p, found in points.items()]
    series = {", ".join(map(str, p)) or "all runs": found for p, found in points.items()}
    picture = folder / "accuracy.png"
    drawn = plot_curves(series, picture, name)
    about = " ".join(dict.fromkeys(map(_about, measurements)))
    table = ResultTable(name, heading, lines, num_labels=len(axes))
    write_table(table, folder, console, [about], [picture] * drawn)
    rows = [to_row(one) for found in points.values() for one in found]
    add_rows(folder / "results.csv", rows, anew=True)


def varying(measurements: Sequence[Measurement]) -> list[str]:
    """Return the settings, the seed aside, in which those runs differ that have them."""
    keys = dict.fromkeys(key for m in measurements for key in m.config)
    ignored = {*PATHS, "seed", STAGES_KEY}
    return [key for key in keys if key not in ignored and len(_values(key, measurements)) > 1]


def _values(key: str, measurements: Sequence[Measurement]) -> set[str]:
    """Return a setting's values; a section's key counts where the section was chosen."""
    return {repr(m.config.get(key)) for m in measurements if "." not in key or key in m.config}


def _figures(found: Sequence[Measurement]) -> list[str]:
    """Return the accuracies of runs, in percent, and how well weights tell malicious clients."""
    scale, form = (100, ".2f") if found[0].metric == ACCURACY else (1, ".4g")
    means = (MeanStd.of([scale * m.figures[f"test-{n}"] for m in found]) for n in ACCURACIES)
    aucs = [m.figures["detection-auc"] for m in found if "detection-auc" in m.figures]
    return [*(m.shown(form) for m in means), MeanStd.of(aucs).shown(".3f") if aucs else "-"]


def _about(measurement: Measurement) -> str:
    """Return what a table's figures are."""
    if measurement.metric == ACCURACY:
        return "Test accuracies in percent."
    better = "higher" if measurement.higher_is_better else "lower"
    return f"Test {measurement.metric}; {better} is better."
