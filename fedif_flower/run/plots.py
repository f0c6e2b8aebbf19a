"""The pictures of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from threading import Lock
from typing import TYPE_CHECKING

from fedif_flower.messages.client_node import UNKNOWN_PARTITION
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import Line
from fedif_flower.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HONEST, MALICIOUS = "#2a6fbb", "#c8442e"
FEW = 12  # Clients, at most, whose lines are named.
LABEL_HEIGHT = 0.05  # Of a picture's.
MAX_NAME = 24  # Characters of a name beside a line.
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
    """Draw a line for each client, coloured by its mark; ``False`` if there are none."""
    if not series:
        return False
    last = {row["client_id"]: row for row in clients}
    malicious = {client_id: bool(last[client_id]["malicious"]) for client_id in series}
    figure = new_figure()
    axes = figure.subplots()
    for client_id, points in series.items():
        # Between its rounds a client keeps its value.
        steps = [*points, (num_rounds, points[-1][1])]
        colour = MALICIOUS if malicious[client_id] else HONEST
        axes.step(*zip(*steps, strict=True), where="post", color=colour, alpha=0.45, linewidth=0.9)
    for colour, label, marked in ((HONEST, "honest", False), (MALICIOUS, "malicious", True)):
        if count := sum(mark is marked for mark in malicious.values()):
            clients_are = "1 client" if count == 1 else f"{count} clients"
            axes.plot([], [], color=colour, label=f"{label} ({clients_are})")
    if len(series) <= FEW:
        called = {i: (0, names[i][:MAX_NAME]) for i in series if names.get(i)}
        if not called:
            partitions = {i: last[i]["partition_id"] for i in series}
            called = {i: (p, str(p)) for i, p in partitions.items() if p != UNKNOWN_PARTITION}
        _name_lines(axes, [(series[i][-1][1], name) for i, name in called.items()])
        if called and not any(map(names.get, called)):
            axes.annotate("client", (1.01, 1.02), xycoords="axes fraction")
    axes.set(xlabel="round", ylabel=labels[0], title=labels[1])
    axes.grid(alpha=0.3)
    if any(malicious.values()):
        axes.legend(loc="upper left")
    save_figure(figure, path)
    return True


def _name_lines(axes: Axes, ends: Sequence[tuple[float, tuple[int, str]]]) -> None:
    """Write whose a line is beside its end; lines that end together share a label."""
    low, high = axes.get_ylim()
    groups: list[list[tuple[float, tuple[int, str]]]] = []
    for end in sorted(ends):
        if groups and end[0] - groups[-1][0][0] < LABEL_HEIGHT * (high - low):
            groups[-1].append(end)
        else:
            groups.append([end])
    for group in groups:
        lowest, _ = group[0]
        names = ", ".join(name for _, (_, name) in sorted(group, key=lambda end: end[1]))
        names = shorten(names, 2 * MAX_NAME, placeholder=" ...")
        axes.annotate(names, (1.01, lowest), xycoords=("axes fraction", "data"), va="center")


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
