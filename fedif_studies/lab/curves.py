"""Accuracy over rounds: one picture per column, one line per row."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedif_flower.run import plots
from fedif_flower.run.palette import look
from fedif_flower.storage import make_folder
from fedif_studies.lab.measurements import ACCURACY, Measurement


def plot_curves(
    series: Mapping[str, Sequence[Measurement]],
    path: Path,
    title: str,
    *,
    split: str = "test",
) -> bool:
    """Draw the mean accuracy of each line's seeds, and the range between them.

    Where tasks have another metric, the first run's is drawn.

    Parameters
    ----------
    series : mapping of str to sequence of Measurement
        What each line is called, and its runs.
    path : Path
        The PNG file.
    title : str
        Above the picture.
    split : {"test", "validation"}
        What the accuracy was measured on.

    Returns
    -------
    bool
        ``False`` if there is nothing to draw.
    """
    figure = plots.new_figure(height=4.5)
    axes = figure.subplots()
    runs = list(itertools.chain.from_iterable(series.values()))
    metric = runs[0].metric if runs else ACCURACY
    in_percent = metric == ACCURACY
    scale = 100 if in_percent else 1
    for index, (name, measurements) in enumerate(series.items()):
        curves = [dict(run.curve(split)) for run in measurements if run.metric == metric]
        curves = [curve for curve in curves if curve]
        if not curves:
            continue
        # Runs need not be evaluated in the same rounds.
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = [[scale * curve[round_] for curve in curves] for round_ in rounds]
        means = [statistics.fmean(of_seeds) for of_seeds in values]
        # A marker at some of the rounds: colours alone do not tell lines apart for everybody.
        every = max(1, len(rounds) // 8)
        label = plots.label_of(name)
        axes.plot(rounds, means, label=label, markevery=every, markersize=5, **look(index))
        if len(curves) > 1:
            low = [min(of_seeds) for of_seeds in values]
            high = [max(of_seeds) for of_seeds in values]
            colour = look(index)["color"]
            axes.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
    if not axes.lines:
        return False
    ylabel = f"{split} {metric}"
    if in_percent:
        ylabel += ", %"
    axes.set(ylabel=ylabel, title=title)
    plots.dress(axes)
    plots.number_rounds(axes)
    axes.legend(loc="lower right" if in_percent else "best")
    make_folder(path.parent)
    plots.save_figure(figure, path)
    return True
