"""Accuracy over rounds: one picture per column, one line per row."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedif_flower.run.plots import new_figure, save_figure
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
    figure = new_figure(height=4.5)
    axes = figure.subplots()
    metric = next((m.metric for found in series.values() for m in found), ACCURACY)
    scale = 100 if metric == ACCURACY else 1
    for index, (name, measurements) in enumerate(series.items()):
        curves = [
            dict(curve) for m in measurements if m.metric == metric and (curve := m.curve(split))
        ]
        if not curves:
            continue
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = [[scale * curve[round_] for curve in curves] for round_ in rounds]
        colour = f"C{index}"
        axes.plot(rounds, [statistics.fmean(v) for v in values], color=colour, label=name)
        if len(curves) > 1:
            low, high = [min(v) for v in values], [max(v) for v in values]
            axes.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
    if not axes.lines:
        return False
    axes.set(
        xlabel="round", ylabel=f"{split} {metric}" + (", %" if scale == 100 else ""), title=title
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right" if scale == 100 else "best")
    make_folder(path.parent)
    save_figure(figure, path)
    return True
