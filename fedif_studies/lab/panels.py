"""A picture of a sweep: panels for one axis, lines for another, error bars over seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedif_flower.run import plots
from fedif_flower.run.palette import line_style
from fedif_flower.settings import Scalar
from fedif_flower.storage import make_folder
from fedif_studies.lab.measurements import ACCURACY, Measurement, configs_of
from fedif_studies.lab.table import MeanStd, grouped

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROUND = "round"  # The x axis if no axis of the sweep has enough numbers.
_FEWEST = 3  # An axis of the sweep needs so many numbers to be the x axis.
_MOST_ACROSS = 3  # Panels in a row, at most.
_BARS = 8  # Error bars on a line over rounds, at most.

Point = tuple[float, MeanStd]
"""A point's place on the x axis, and its mean and standard deviation over seeds."""


class Roles(NamedTuple):
    """The part that each axis of a sweep plays in its picture.

    Attributes
    ----------
    along : str
        The axis that is the x axis of all panels; :data:`ROUND` if no axis has enough numbers.
    panels : str
        The axis with a panel for each value; if empty, there is one panel.
    lines : tuple of str
        The other axes: each combination of their values is a line.
    """

    along: str
    panels: str
    lines: tuple[str, ...]


def roles_of(axes: Mapping[str, Sequence[Scalar]], *, over_rounds: bool) -> Roles:
    """Return the part that each axis plays in a picture.

    The axis with most numbers is the x axis. Of the others, the first has the lines and the second
    the panels; any further axes join the lines.

    Parameters
    ----------
    axes : mapping of str to sequence of Scalar
        The values of each axis, in the order of the sweep's file.
    over_rounds : bool
        Whether rounds are the x axis, whatever the axes are.
    """
    numeric = [key for key, values in axes.items() if _are_numbers(values)]
    if over_rounds:
        numeric = []
    along = max(numeric, key=lambda key: len(axes[key]), default=ROUND)
    others = [key for key in axes if key != along]
    if len(others) < 2:
        return Roles(along, "", tuple(others))
    first, second, *more = others
    return Roles(along, second, (first, *more))


def _are_numbers(values: Sequence[Scalar]) -> bool:
    if len(values) < _FEWEST:
        return False
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def axes_of(
    measurements: Sequence[Measurement], keys: Sequence[str]
) -> dict[str, tuple[Scalar, ...]]:
    """Return the values of each axis: numbers by size, others in the order of the runs."""
    axes = {}
    for key in keys:
        values = list(dict.fromkeys(config.get(key, "") for config in configs_of(measurements)))
        if _are_numbers(values):
            values.sort()
        axes[key] = tuple(values)
    return axes


def points_of(measurements: Sequence[Measurement], along: str) -> list[Point]:
    """Return a line's points: the mean and the standard deviation over its runs' seeds.

    Over rounds, a point shows the metric after one round. Along a setting, it shows the mean of the
    last ten rounds. Accuracies are in percent.
    """
    values: dict[float, list[float]] = defaultdict(list)
    for measurement in measurements:
        scale = 100 if measurement.metric == ACCURACY else 1
        if along == ROUND:
            for number, value in measurement.curve("test"):
                values[number].append(scale * value)
        else:
            place = float(measurement.config[along])
            values[place].append(scale * measurement.figures["test-last-ten"])
    return [(place, MeanStd.of(values[place])) for place in sorted(values)]


def plot_sweep(
    measurements: Sequence[Measurement],
    axes: Mapping[str, Sequence[Scalar]],
    roles: Roles,
    path: Path,
    title: str,
) -> bool:
    """Draw a sweep.

    Parameters
    ----------
    measurements : sequence of Measurement
        Its runs; those with another metric than the first are left out.
    axes : mapping of str to sequence of Scalar
        The values of each axis.
    roles : Roles
        The part that each axis plays.
    path : Path
        The PNG file.
    title : str
        The title above the picture.

    Returns
    -------
    bool
        ``False`` if there is nothing to draw.
    """
    metric = measurements[0].metric
    shown = [measurement for measurement in measurements if measurement.metric == metric]
    if not points_of(shown, roles.along):
        return False
    values = axes.get(roles.panels, ("",))
    down = math.ceil(len(values) / _MOST_ACROSS)
    across = math.ceil(len(values) / down)
    figure = plots.new_figure(0.8 + 3.0 * down, max(7.0, 3.2 * across + 1.8))
    figure.suptitle(title)
    panels = figure.subplots(down, across, squeeze=False, sharey=True)
    for unused in panels.flat[len(values) :]:
        unused.set_visible(False)
    lines: dict[str, int] = {}  # Each line's place in the legend, which is the same in all panels.
    for panel, value in zip(panels.flat, values, strict=False):
        runs = shown
        if roles.panels:
            runs = [run for run in shown if run.config.get(roles.panels, "") == value]
            panel.set_title(f"{roles.panels} = {value}", fontsize="medium")
        _draw_panel(panel, runs, roles, lines)
        if roles.along == ROUND:
            plots.number_rounds(panel)
        else:
            panel.set(xlabel=roles.along)
    for panel in panels[:, 0]:
        panel.set(ylabel=_label_of(metric, roles.along))
    if roles.lines:
        _draw_legend(figure, panels.flat, lines, roles)
    make_folder(path.parent)
    plots.save_figure(figure, path)
    return True


def _draw_legend(
    figure: Figure, panels: Iterable[Axes], lines: Iterable[str], roles: Roles
) -> None:
    """Name the lines of all panels beside them."""
    by_name: dict[str, Artist] = {}
    for panel in panels:
        handles, names = panel.get_legend_handles_labels()
        by_name |= dict(zip(names, handles, strict=True))
    title = ", ".join(roles.lines)
    drawn = [by_name[name] for name in lines]
    figure.legend(drawn, list(lines), loc="outside right upper", title=title, fontsize="small")


def _draw_panel(
    panel: Axes, measurements: Sequence[Measurement], roles: Roles, lines: dict[str, int]
) -> None:
    """Draw a panel's lines, and add those that are new to ``lines``, their places in the legend."""
    by_line = grouped(measurements, lambda measurement: _name_of_line(measurement, roles))
    for name, runs in by_line.items():
        index = lines.setdefault(name, len(lines))
        points = points_of(runs, roles.along)
        # Each line has its error bars at other rounds: bars of close lines would hide each other.
        every: int | tuple[int, int] = 1
        if roles.along == ROUND:
            apart = max(1, math.ceil(len(points) / _BARS))
            every = (index % apart, apart)
        places = []
        means = []
        deviations = []
        for place, figure in points:
            places.append(place)
            means.append(figure.mean)
            deviations.append(figure.std or 0.0)
        panel.errorbar(
            places,
            means,
            yerr=deviations,
            errorevery=every,
            markevery=every,
            label=name,
            capsize=2.5,
            linewidth=1.4,
            markersize=5,
            **line_style(index),
        )
    plots.dress(panel)


def _name_of_line(measurement: Measurement, roles: Roles) -> str:
    """Return the name of a run's line: the run's values on the axes that have lines."""
    values = [str(measurement.config.get(key, "")) for key in roles.lines]
    return plots.label_of(", ".join(values))


def _label_of(metric: str, along: str) -> str:
    label = f"test {metric}"
    if metric == ACCURACY:
        label += ", %"
    if along != ROUND:
        label += "\n(mean of the last ten rounds)"
    return label
