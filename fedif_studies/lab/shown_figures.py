"""The figures that a table shows of runs: accuracies, or the metric that their task has instead."""

from __future__ import annotations

from collections.abc import Sequence

from fedif_studies.lab.measurements import ACCURACIES, ACCURACY, Measurement, figures_of
from fedif_studies.lab.table import MeanStd

FIGURES = (*ACCURACIES.values(), "detection AUC")
"""The headings of the columns that :func:`shown_figures` returns."""


def shown_figures(measurements: Sequence[Measurement]) -> list[str]:
    """Return means over runs as text: the three accuracies, in percent, and the detection AUC.

    The detection AUC says how well low weight scores tell malicious clients from honest ones. Runs
    whose task has another metric are shown by that metric instead of the accuracy.
    """
    scale = 1
    form = ".4g"
    if measurements[0].metric == ACCURACY:
        scale = 100
        form = ".2f"
    figures = []
    for name in ACCURACIES:
        values = [scale * measurement.figures[f"test-{name}"] for measurement in measurements]
        figures.append(MeanStd.of(values).shown(form))
    figures.append(_detection(measurements))
    return figures


def _detection(measurements: Sequence[Measurement]) -> str:
    """Return the mean detection AUC of runs, and how many runs it is of if some have none.

    A run has none if no malicious client was drawn.
    """
    aucs = figures_of(measurements, "detection-auc")
    if not aucs:
        return "-"
    shown = MeanStd.of(aucs).shown(".3f")
    if len(aucs) < len(measurements):
        shown += f" ({len(aucs)} of {len(measurements)} seeds)"
    return shown


def direction(measurements: Sequence[Measurement]) -> list[str]:
    """Return a sentence for each metric other than accuracy: whether higher or lower is better."""
    of_tasks = [measured for measured in measurements if measured.metric != ACCURACY]
    return list(dict.fromkeys(map(about_figures, of_tasks)))


def about_figures(measurement: Measurement) -> str:
    """Return a sentence on what a table's figures are."""
    if measurement.metric == ACCURACY:
        return "Test accuracies in percent."
    better = "higher" if measurement.higher_is_better else "lower"
    return f"Test {measurement.metric}; {better} is better."
