"""A picture of accuracies over rounds, with a line for each series of runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedif_flower.run import plots
from fedif_flower.run.palette import line_style
from fedif_flower.storage import make_folder
from fedif_studies.lab.measurements import ACCURACY, Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = dict[int, float]
"""The accuracy after each round, by the round's number."""


def plot_curves(
    series: Mapping[str, Sequence[Measurement]],
    path: Path,
    title: str,
    *,
    split: str = "test",
) -> bool:
    """Draw each series as the mean of its runs, between their lowest and highest values.

    The metric is that of the first run; runs with another metric are left out.

    Parameters
    ----------
    series : mapping of str to sequence of Measurement
        The name of each line, and its runs.
    path : Path
        The PNG file.
    title : str
        The title above the picture.
    split : {"test", "validation"}
        The split that the metric was measured on.

    Returns
    -------
    bool
        ``False`` if there is nothing to draw.
    """
    figure = plots.new_figure(height=4.5)
    axes = figure.subplots()
    metric = _metric_of_first(series)
    for index, (name, measurements) in enumerate(series.items()):
        curves = _curves_of(measurements, metric, split)
        if curves:
            _draw_line(axes, index, plots.label_of(name), curves)
    if not axes.lines:
        return False
    axes.set(title=title)
    plots.dress(axes)
    plots.number_rounds(axes)
    if metric == ACCURACY:
        axes.set(ylabel=f"{split} {metric}, %")
        axes.legend(loc="lower right")  # Accuracies rise, and leave this corner free.
    else:
        axes.set(ylabel=f"{split} {metric}")
        axes.legend(loc="best")
    make_folder(path.parent)
    plots.save_figure(figure, path)
    return True


def _metric_of_first(series: Mapping[str, Sequence[Measurement]]) -> str:
    for measurements in series.values():
        for run in measurements:
            return run.metric
    return ACCURACY


def _curves_of(measurements: Sequence[Measurement], metric: str, split: str) -> list[Curve]:
    """Return the curve of each run with this metric and a value of it; accuracies in percent."""
    scale = 100 if metric == ACCURACY else 1
    curves = []
    for run in measurements:
        if run.metric != metric:
            continue
        curve = {number: scale * value for number, value in run.curve(split)}
        if curve:
            curves.append(curve)
    return curves


def _draw_line(axes: Axes, index: int, label: str, curves: Sequence[Curve]) -> None:
    """Draw the mean of curves, and the range between their lowest and highest values."""
    # Runs need not be evaluated in the same rounds: only rounds that all of them have are drawn.
    rounds = sorted(set.intersection(*map(set, curves)))
    means = []
    lowest = []
    highest = []
    for number in rounds:
        values = [curve[number] for curve in curves]
        means.append(statistics.fmean(values))
        lowest.append(min(values))
        highest.append(max(values))
    # A marker at some of the rounds: colours alone do not tell lines apart for everybody.
    every = max(1, len(rounds) // 8)
    axes.plot(rounds, means, label=label, markevery=every, markersize=5, **line_style(index))
    if len(curves) > 1:
        colour = line_style(index)["color"]
        axes.fill_between(rounds, lowest, highest, color=colour, alpha=0.2, linewidth=0)
