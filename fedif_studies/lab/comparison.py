"""Runs beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.run.results import Run
from fedif_flower.strategies.config import configured_bounds, default_clipping
from fedif_flower.tables import ResultTable, shown_number
from fedif_studies.lab.measurements import ACCURACIES, ACCURACY, read_measurement
from fedif_studies.lab.report import scale_of, varying


def compare(runs: Sequence[Run]) -> ResultTable:
    """Return complete runs beside each other: the settings that differ, and what came of them.

    Where one has bounds on its updates that another has not, a column names them, and says which
    came with the strategy: a lead may be theirs.

    Raises
    ------
    ConfigError
        If one is not complete or never evaluated its model, or they have different metrics.
    """
    measured = []
    for run in runs:
        found = read_measurement(run.folder.path) if run.summary else None
        if found is None:
            raise ConfigError(f"{run.name} is not complete, or never evaluated its model")
        measured.append(found)
    if len({m.metric for m in measured}) > 1:
        metrics = ", ".join(f"{r.name}: {m.metric}" for r, m in zip(runs, measured, strict=True))
        raise ConfigError(f"the runs are measured by different metrics: {metrics}")
    differ = [*varying(measured), *(["seed"] if len({m.seed for m in measured}) > 1 else [])]
    scale, form = scale_of(measured[0].metric)
    bounds = [_bounds(one.config) for one in measured]
    bounded = ["bounds"] if len(set(bounds)) > 1 else []
    heading = ["run", *differ, *bounded, *ACCURACIES.values(), "detection AUC", "s"]
    lines = []
    for run, one, bound in zip(runs, measured, bounds, strict=True):
        settings = [str(one.config.get(key, "")) for key in differ] + [bound] * len(bounded)
        test = [format(scale * one.figures[f"test-{name}"], form) for name in ACCURACIES]
        auc = one.figures.get("detection-auc")
        seconds = f"{one.figures.get('seconds', math.nan):.1f}"
        lines.append([run.name, *settings, *test, shown_number(auc, ".3f"), seconds])
    title = f"test {measured[0].metric}" + (", %" if measured[0].metric == ACCURACY else "")
    return ResultTable(title, heading, lines, num_labels=1 + len(differ) + len(bounded))


def _bounds(settings: Mapping[str, Any]) -> str:
    """Return the bounds that a run had on its updates, and whether they are its strategy's own."""
    strategy, clipping = str(settings["strategy"]), float(settings.get("update-clipping", 0.0))
    stages = " + ".join(map(repr, configured_bounds(strategy, clipping))) or "none"
    return stages + (", by default" if clipping == default_clipping(strategy) else "")
