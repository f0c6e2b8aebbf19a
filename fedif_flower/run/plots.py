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

HONEST, MALICIOUS = "#2a6fbb", "#c8442e"
FEW = 10  # Clients, at most, whose lines are named: as many as there are colours.
MAX_NAME = 24  # Characters of a name.
Series = Mapping[int, Sequence[tuple[int, float]]]  # Of rounds and values, by client id.
_DRAWING = Lock()  # text layout in matplotlib is not safe between threads


def plot_progress(rounds: Sequence[Line], folder: RunFolder, title: str) -> Path:
    """Draw test and validation accuracy over the rounds, or what a task has in its place."""
    named = [
        name.partition("_")[2]
        for row in rounds
        for name, value in row.items()
        if value is not None and name.startswith(("test_", "validation_"))
    ]
    has_accuracy = "accuracy" in named
    key = "accuracy" if has_accuracy else next((key for key in named if key != "loss"), "loss")
    path = folder.pictures["accuracy" if has_accuracy else "metric"]
    figure = new_figure()
    axes = figure.subplots()
    for split, style in (("test", "-"), ("validation", ":")):
        columns = [(row["round"], row.get(f"{split}_{key}")) for row in rounds]
        if shown := [point for point in columns if point[1] is not None]:
            axes.plot(*zip(*shown, strict=True), style, color=HONEST, label=split)
    sure = [(row["round"], row.get("validation_contradicted")) for row in rounds]
    if contradicted := [point for point in sure if point[1] is not None]:
        label = "validation labels contradicted"
        axes.plot(*zip(*contradicted, strict=True), "-.", color="grey", linewidth=0.9, label=label)
    axes.set(xlabel="round", ylabel=key.replace("_", " "), title=title)
    if has_accuracy:
        axes.set(ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right" if has_accuracy else "best")
    save_figure(figure, path)
    return path


def plot_members(
    series: Series, known: Mapping[int, tuple[str, bool]], last: int, path: Path, *labels: str
) -> None:
    """Draw a line for each client up to a round, in a picture with an axis' label and a title.

    A few clients have their names there, many only whether they are known to misbehave.
    """
    marked = {client_id for client_id in series if known[client_id][1]}
    few = len(series) <= FEW
    figure = new_figure()
    axes = figure.subplots()
    for client_id, points in sorted(series.items()):
        style: dict[str, Any] = {"color": MALICIOUS if client_id in marked else HONEST}
        if few:
            mark, dashes = (" (malicious)", "--") if client_id in marked else ("", "-")
            label = shorten(known[client_id][0], MAX_NAME, placeholder=" ...") + mark
            style = {"label": label, "linestyle": dashes}
        # Between its rounds a client keeps its value.
        steps = [*points, (last, points[-1][1])]
        axes.step(*zip(*steps, strict=True), where="post", alpha=0.6, linewidth=0.9, **style)
    if not few and marked:
        axes.plot([], [], color=HONEST, label=f"honest ({len(series) - len(marked)} clients)")
        axes.plot([], [], color=MALICIOUS, label=f"malicious ({len(marked)})")
    axes.set(xlabel="round", ylabel=labels[0], title=labels[1])
    axes.grid(alpha=0.3)
    if few or marked:
        # Names stand beside the lines, not over them.
        place = {"bbox_to_anchor": (1.0, 1.0)} if few else {}
        axes.legend(loc="upper left", fontsize="small", **place)
    save_figure(figure, path)


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
