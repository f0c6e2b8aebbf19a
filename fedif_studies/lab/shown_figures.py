"""What a table shows of runs: accuracies, or what their tasks have in place of these."""

from __future__ import annotations

from collections.abc import Sequence

from fedif_studies.lab.measurements import ACCURACIES, ACCURACY, Measurement, figures_of
from fedif_studies.lab.table import MeanStd

FIGURES = (*ACCURACIES.values(), "detection AUC")
"""What the columns of :func:`shown_figures` are called."""


def shown_figures(measurements: Sequence[Measurement]) -> list[str]:
    """Return the accuracies of runs, in percent, and how well weights tell malicious clients."""
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
    """Return the detection AUC of runs, and of how many it is where some drew nobody malicious."""
    aucs = figures_of(measurements, "detection-auc")
    if not aucs:
        return "-"
    shown = MeanStd.of(aucs).shown(".3f")
    if len(aucs) < len(measurements):
        shown += f" ({len(aucs)} of {len(measurements)} seeds)"
    return shown


def direction(measurements: Sequence[Measurement]) -> list[str]:
    """Return whether a task's own metrics are to be high or low; nothing of accuracies."""
    of_tasks = [measured for measured in measurements if measured.metric != ACCURACY]
    return list(dict.fromkeys(map(about_figures, of_tasks)))


def about_figures(measurement: Measurement) -> str:
    """Return what a table's figures are."""
    if measurement.metric == ACCURACY:
        return "Test accuracies in percent."
    better = "higher" if measurement.higher_is_better else "lower"
    return f"Test {measurement.metric}; {better} is better."
