"""The pictures of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from threading import Lock
from typing import TYPE_CHECKING, Any

from fedif_flower.messages.client_node import called
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import Line
from fedif_flower.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HONEST, MALICIOUS = "#2a6fbb", "#c8442e"
FEW = 10  # Clients, at most, whose lines are named: as many as there are colours.
MAX_NAME = 24  # Characters of a name.
_DRAWING = Lock()  # text layout in matplotlib is not safe between threads


def plot_progress(rounds: Sequence[Line], folder: RunFolder, title: str) -> Path:
    """Draw test and validation accuracy over the rounds, or what a task has in its place."""
    usual = ("accuracy", "loss")
    named = [
        name.partition("_")[2]
        for row in rounds
        for name, value in row.items()
        if value is not None and name.startswith(("test_", "validation_"))
    ]
    own = next((key for key in named if key not in usual), "loss")
    key = "accuracy" if "accuracy" in named else own
    path = folder.accuracy_picture if key == "accuracy" else folder.metric_picture
    figure = new_figure()
    axes = figure.subplots()
    for split, style in (("test", "-"), ("validation", ":")):
        columns = [(row["round"], row.get(f"{split}_{key}")) for row in rounds]
        shown = [(number, value) for number, value in columns if value is not None]
        if shown:
            axes.plot(*zip(*shown, strict=True), style, color=HONEST, label=split)
    axes.set(xlabel="round", ylabel=key.replace("_", " "), title=title)
    if key == "accuracy":
        axes.set(ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right" if key == "accuracy" else "best")
    save_figure(figure, path)
    return path


def plot_scores(
    clients: Sequence[Line], num_rounds: int, path: Path, names: Mapping[int, str]
) -> bool:
    """Draw each client's weight score over the rounds; ``False`` if there are none."""
    series: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for row in clients:
        if row["weight_score"] is not None:
            series[row["client_id"]].append((row["round"], row["weight_score"]))
    title = "Weight score of each client that took part"
    labels = r"weight score $\Omega$", title
    return _plot_members(series, clients, num_rounds, labels, path, names)


def plot_attribution(
    attributed: Iterable[Line],
    clients: Sequence[Line],
    num_rounds: int,
    path: Path,
    names: Mapping[int, str],
) -> bool:
    """Draw the sum of each client's contributions over the rounds; ``False`` if there are none."""
    series: dict[int, list[tuple[int, float]]] = defaultdict(lambda: [(0, 0.0)])
    for row in attributed:
        so_far = series[row["client_id"]]
        so_far.append((row["round"], so_far[-1][1] + row["contribution"]))
    title = "Contribution of each client, summed over its rounds"
    labels = "decrease of the validation loss", title
    return _plot_members(series, clients, num_rounds, labels, path, names)


def _plot_members(
    series: Mapping[int, Sequence[tuple[int, float]]],
    clients: Iterable[Line],
    num_rounds: int,
    labels: tuple[str, str],
    path: Path,
    names: Mapping[int, str],
) -> bool:
    """Draw a line for each client: a few by their names, many by their marks alone.

    ``False`` if there are none.
    """
    if not series:
        return False
    last = {row["client_id"]: row for row in clients}
    marked = {client_id for client_id in series if last[client_id]["malicious"]}
    few = len(series) <= FEW
    figure = new_figure()
    axes = figure.subplots()
    for client_id, points in sorted(series.items()):
        style: dict[str, Any] = {"color": MALICIOUS if client_id in marked else HONEST}
        if few:
            name = called(client_id, last[client_id]["partition_id"], names.get(client_id, ""))
            mark, dashes = (" (malicious)", "--") if client_id in marked else ("", "-")
            label = shorten(name, MAX_NAME, placeholder=" ...") + mark
            style = {"label": label, "linestyle": dashes}
        # Between its rounds a client keeps its value.
        steps = [*points, (num_rounds, points[-1][1])]
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
    return True


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
