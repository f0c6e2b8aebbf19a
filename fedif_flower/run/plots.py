"""The pictures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from threading import Lock
from typing import TYPE_CHECKING, Any

from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import Line
from fedif_flower.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HONEST = "#2a6fbb"
MALICIOUS = "#c8442e"
FEW = 10  # Clients, at most, whose lines are named: as many as there are colours.
MAX_NAME = 24  # Characters of a name.
Series = Mapping[int, Sequence[tuple[int, float]]]  # Of rounds and values, by client id.
_DRAWING = Lock()  # text layout in matplotlib is not safe between threads


def plot_progress(rounds: Sequence[Line], folder: RunFolder, title: str) -> Path:
    """Draw test and validation accuracy over the rounds, or what a task has in its place."""
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
    axes.set(xlabel="round", ylabel=metric.replace("_", " "), title=title)
    axes.grid(alpha=0.3)
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
    """Return accuracy where there is one, else a metric of the task's own, else the loss."""
    metrics = []
    for row in rounds:
        for column, value in row.items():
            split, _, metric = column.partition("_")
            if value is not None and split in ("test", "validation"):
                metrics.append(metric)
    if "accuracy" in metrics:
        return "accuracy"
    for metric in metrics:
        if metric != "loss":
            return metric
    return "loss"


def _points(rounds: Sequence[Line], column: str) -> list[tuple[int, float]]:
    """Return the rounds that have a value in a column, and the value."""
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
    """Draw a line for each client up to a round.

    ``members`` has each client's name, and whether it is known to misbehave. A few clients have
    their names in the picture, many only whether they misbehave.
    """
    malicious = {client_id for client_id in series if members[client_id][1]}
    few = len(series) <= FEW
    figure = new_figure()
    axes = figure.subplots()
    for client_id, points in sorted(series.items()):
        if few:
            style = _named_style(members[client_id][0], is_malicious=client_id in malicious)
        else:
            style = {"color": MALICIOUS if client_id in malicious else HONEST}
        # Between its rounds a client keeps its value.
        steps = [*points, (last, points[-1][1])]
        axes.step(*zip(*steps, strict=True), where="post", alpha=0.6, linewidth=0.9, **style)
    if not few and malicious:
        # Lines without points, for the legend alone.
        axes.plot([], [], color=HONEST, label=f"honest ({len(series) - len(malicious)} clients)")
        axes.plot([], [], color=MALICIOUS, label=f"malicious ({len(malicious)})")
    axes.set(xlabel="round", ylabel=ylabel, title=title)
    axes.grid(alpha=0.3)
    if few:
        # Names stand beside the lines, not over them.
        axes.legend(loc="upper left", fontsize="small", bbox_to_anchor=(1.0, 1.0))
    elif malicious:
        axes.legend(loc="upper left", fontsize="small")
    save_figure(figure, path)


def _named_style(name: str, *, is_malicious: bool) -> dict[str, Any]:
    """Return how a client is drawn whose name is in the picture; colours differ by themselves."""
    label = shorten(name, MAX_NAME, placeholder=" ...")
    if is_malicious:
        return {"label": f"{label} (malicious)", "linestyle": "--"}
    return {"label": label, "linestyle": "-"}


def new_figure(height: float = 4.0) -> Figure:
    """Return an empty picture, 7 by ``height`` inches."""
    from matplotlib.figure import Figure  # takes half a second, which only drawing should cost

    return Figure(figsize=(7, height), layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture as PNG, whole or not at all; safe to call from several threads."""
    buffer = BytesIO()
    with _DRAWING:
        figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
