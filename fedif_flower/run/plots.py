"""The pictures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedif_flower.run.folder import RunFolder
from fedif_flower.run.palette import BLUE, HONEST, MALICIOUS, VERMILLION, line_style
from fedif_flower.run.rows import Line
from fedif_flower.server.record import first_metric
from fedif_flower.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 10  # Up to so many clients, a legend names each line.
_MOST_NAMED = 40  # Up to so many clients, a map names each row.
_SHOWN = 98  # A map's colours reach to this percentile of magnitudes; larger ones look like it.
MAX_NAME = 24  # Characters of a name; longer names are shortened.
Series = Mapping[int, Sequence[tuple[int, float]]]  # By client id, its rounds and values.
_DRAWING = Lock()  # Text layout in matplotlib is not safe between threads.


def plot_progress(rounds: Sequence[Line], folder: RunFolder, title: str) -> Path:
    """Draw a metric on the test and the validation split over the rounds; return the picture.

    The metric is the first of the task's own, else accuracy, else the loss. Where labels that the
    model contradicts were counted, their share is drawn, too.
    """
    metric = _drawn_metric(rounds)
    figure = new_figure()
    axes = figure.subplots()
    for split, style in (("test", "-"), ("validation", ":")):
        points = _points(rounds, f"{split}_{metric}")
        if points:
            axes.plot(*zip(*points, strict=True), style, color=HONEST, label=split)
    contradicted = _points(rounds, "validation_contradicted")
    if contradicted:
        label = "validation labels contradicted"
        axes.plot(*zip(*contradicted, strict=True), "-.", color="grey", linewidth=0.9, label=label)
    axes.set(ylabel=metric.replace("_", " "), title=title)
    dress(axes)
    number_rounds(axes)
    if metric == "accuracy":
        path = folder.pictures["accuracy"]
        axes.set(ylim=(0, 1))
        axes.legend(loc="lower right")
    else:
        path = folder.pictures["metric"]
        axes.legend(loc="best")
    save_figure(figure, path)
    return path


def _drawn_metric(rounds: Sequence[Line]) -> str:
    """Return the first of the task's own measured metrics, else accuracy, else the loss."""
    measured = []
    for row in rounds:
        for column, value in row.items():
            split, _, metric = column.partition("_")
            is_metric = split in ("test", "validation") and metric != "contradicted"
            if is_metric and value is not None:
                measured.append(metric)
    return first_metric(measured) or "loss"


def _points(rounds: Sequence[Line], column: str) -> list[tuple[int, float]]:
    """Return pairs of round and value, for the rounds that have a value in a column."""
    points = []
    for row in rounds:
        value = row.get(column)
        if value is not None:
            points.append((row["round"], value))
    return points


def plot_members(
    series: Series,
    members: Mapping[int, tuple[str, bool]],
    last: int,
    path: Path,
    *,
    ylabel: str,
    title: str,
) -> None:
    """Draw a line over the rounds for each client.

    Up to :data:`FEW` clients are named in the legend; among more, only honest and malicious ones
    are told apart.

    Parameters
    ----------
    series : mapping of int to sequence of tuple
        By client id, its rounds and values.
    members : mapping of int to tuple of str and bool
        By client id, its name and whether it is known to misbehave.
    last : int
        The last round, to which each line is drawn.
    path : Path
        The PNG file.
    ylabel, title : str
        What the values are, and the title of the picture.
    """
    malicious = {client_id for client_id in series if members[client_id][1]}
    few = len(series) <= FEW
    figure = new_figure()
    axes = figure.subplots()
    for index, (client_id, points) in enumerate(sorted(series.items())):
        is_malicious = client_id in malicious
        style = _style_of_many(is_malicious=is_malicious)
        if few:
            named = _named_style(members[client_id][0], is_malicious=is_malicious)
            style = {**line_style(index), **named, "markersize": 3.5}
        # Between its rounds a client keeps its value.
        steps = [*points, (last, points[-1][1])]
        axes.step(*zip(*steps, strict=True), where="post", alpha=0.7, linewidth=0.9, **style)
    if not few and malicious:
        # Lines without points, for the legend alone.
        honest = f"honest ({len(series) - len(malicious)} clients)"
        axes.plot([], [], label=honest, **_style_of_many(is_malicious=False))
        others = f"malicious ({len(malicious)})"
        axes.plot([], [], label=others, **_style_of_many(is_malicious=True))
    axes.set(ylabel=ylabel, title=title)
    dress(axes)
    number_rounds(axes)
    if few:
        # Names stand beside the lines, not over them.
        axes.legend(loc="upper left", fontsize="small", bbox_to_anchor=(1.0, 1.0))
    elif malicious:
        axes.legend(loc="upper left", fontsize="small")
    save_figure(figure, path)


def _style_of_many(*, is_malicious: bool) -> dict[str, Any]:
    """Return the style of a line for a client that is not named in the legend."""
    if is_malicious:
        return {"color": MALICIOUS, "linestyle": (0, (4, 1))}
    return {"color": HONEST, "linestyle": "-"}


def _named_style(name: str, *, is_malicious: bool) -> dict[str, Any]:
    """Return label and dashes of a line for a client that is named; its colour is set elsewhere."""
    label = label_of(shorten(name, MAX_NAME, placeholder=" ..."))
    if is_malicious:
        return {"label": f"{label} (malicious)", "linestyle": "--"}
    return {"label": label, "linestyle": "-"}


def plot_rounds(
    columns: Mapping[str, Series],
    members: Mapping[int, tuple[str, bool]],
    last: int,
    path: Path,
    *,
    title: str,
) -> None:
    """Draw maps of clients by rounds, one below the other: each cell's colour is a value.

    Parameters
    ----------
    columns : mapping of str to Series
        A map for each: what its values are, and the values by client.
    members : mapping of int to tuple of str and bool
        By client id, its name and whether it is known to misbehave. Honest clients come first.
    last : int
        The last round.
    path : Path
        The PNG file.
    title : str
        The title of the picture.
    """
    order = sorted(members, key=lambda client_id: (members[client_id][1], client_id))
    height = 0.9 + len(columns) * max(2.4, min(0.2 * len(order), 4.0))
    figure = new_figure(height)
    figure.suptitle(title)
    all_axes = figure.subplots(len(columns), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (name, series) in zip(all_axes, columns.items(), strict=True):
        values = np.full((len(order), last), np.nan)  # [n, T]; NaN: the client had no part.
        for row, client_id in enumerate(order):
            for server_round, value in series.get(client_id, ()):
                values[row, server_round - 1] = value
        _draw_map(figure, axes, values, name)
        _name_rows(axes, [members[client_id] for client_id in order])
    number_rounds(axes, "round; grey: had no part")
    save_figure(figure, path)


def _draw_map(figure: Figure, axes: Axes, values: NDArray[np.float64], name: str) -> None:
    """Draw values ``[n, T]``: blue above 0, vermillion below 0, grey for NaN."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = ["#ffffff", BLUE]
    reach = _reach_of(values)
    low = 0.0
    if np.nanmin(values, initial=0.0) < 0:
        colours = [VERMILLION, *colours]
        low = -reach
    colour_map = LinearSegmentedColormap.from_list("palette", colours)
    rounds = values.shape[1]
    drawn = axes.imshow(
        values,
        aspect="auto",
        interpolation="nearest",
        cmap=colour_map,
        vmin=low,
        vmax=reach,
        extent=(0.5, rounds + 0.5, len(values) - 0.5, -0.5),
    )
    axes.set_facecolor("#d9d9d9")
    figure.colorbar(drawn, ax=axes, label=name, extend="max" if low == 0 else "both")


def _reach_of(values: NDArray[np.float64]) -> float:
    """Return the magnitude > 0 from which on all values of a map have the same colour."""
    magnitudes = np.abs(values[np.isfinite(values)])
    if not magnitudes.any():
        return 1.0
    reach = float(np.percentile(magnitudes, _SHOWN))
    if not reach:  # Nearly all values are 0: the largest one is to have a colour.
        return float(magnitudes.max())
    return reach


def _name_rows(axes: Axes, members: Sequence[tuple[str, bool]]) -> None:
    """Name each row of a map; if there are many, only the honest and the malicious group."""
    if len(members) <= _MOST_NAMED:
        names = []
        for name, is_malicious in members:
            shown = shorten(name, MAX_NAME, placeholder=" ...")
            if is_malicious:
                shown += " (malicious)"
            names.append(shown)
        axes.set_yticks(range(len(members)), names, fontsize="small")
        return
    num_malicious = sum(is_malicious for _, is_malicious in members)
    num_honest = len(members) - num_malicious
    groups = []
    if num_honest:
        groups.append((num_honest / 2, f"honest ({num_honest})"))
    if num_malicious:
        groups.append((num_honest + num_malicious / 2, f"malicious ({num_malicious})"))
        axes.axhline(num_honest - 0.5, color="black", linewidth=0.9)
    places = [place for place, _ in groups]
    titles = [group for _, group in groups]
    axes.set_yticks(places, titles, rotation="vertical", verticalalignment="center")


def new_figure(height: float = 4.0, width: float = 7.0) -> Figure:
    """Return an empty picture; height and width are in inches."""
    from matplotlib.figure import Figure  # The import takes half a second: only drawing needs it.

    return Figure(figsize=(width, height), layout="constrained")


def dress(axes: Axes) -> None:
    """Give axes the look of all pictures: a light grid, no frame."""
    axes.grid(color="#d8dee4", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#6e7781")
    axes.tick_params(color="#6e7781")


def number_rounds(axes: Axes, label: str = "round") -> None:
    """Name the axis of rounds, and put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def label_of(name: str) -> str:
    """Return a name as a label: a legend leaves out labels that are empty or begin with "_"."""
    if not name:
        return "(empty)"
    return f" {name}" if name.startswith("_") else name


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture as PNG, whole or not at all; several threads may do so at once.

    A dollar sign in a text is written as it is: names are no formulas.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    buffer = BytesIO()
    with _DRAWING, rc_context({"text.parse_math": False}):
        for text in figure.findobj(Text):
            text.set_parse_math(False)
            # A folder's name may have bytes that are no UTF-8: they become question marks.
            text.set_text(text.get_text().encode(errors="replace").decode())
        figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
