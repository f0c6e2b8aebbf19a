"""The pictures of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from fedif_flower.run.rows import ClientRow, RoundRow
from fedif_flower.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HONEST, MALICIOUS = "#2a6fbb", "#c8442e"
_DRAWING = Lock()  # text layout in matplotlib is not safe between threads


def plot_accuracy(rounds: Sequence[RoundRow], path: Path, title: str) -> None:
    """Draw test and validation accuracy over the rounds."""
    figure = new_figure()
    axes = figure.subplots()
    for name, label, style in (
        ("test_accuracy", "test", "-"),
        ("validation_accuracy", "validation", ":"),
    ):
        shown = [
            (row.round, getattr(row, name)) for row in rounds if getattr(row, name) is not None
        ]
        if shown:
            axes.plot(*zip(*shown, strict=True), style, color=HONEST, label=label)
    axes.set(xlabel="round", ylabel="accuracy", title=title, ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    save_figure(figure, path)


def plot_contributions(clients: Sequence[ClientRow], num_rounds: int, path: Path) -> bool:
    """Draw each client's contribution over the rounds; ``False`` if there are none."""
    series: dict[int, list[tuple[int, float]]] = defaultdict(list)
    malicious: dict[int, bool] = {}
    for row in clients:
        if row.contribution is not None:
            series[row.client_id].append((row.round, row.contribution))
            malicious[row.client_id] = row.malicious
    if not series:
        return False
    figure = new_figure()
    axes = figure.subplots()
    for client_id, points in series.items():
        # Between its rounds a client keeps its contribution.
        steps = [*points, (num_rounds, points[-1][1])]
        colour = MALICIOUS if malicious[client_id] else HONEST
        axes.step(*zip(*steps, strict=True), where="post", color=colour, alpha=0.45, linewidth=0.9)
    for colour, label, marked in ((HONEST, "honest", False), (MALICIOUS, "malicious", True)):
        count = sum(flag is marked for flag in malicious.values())
        if count:
            axes.plot([], [], color=colour, label=f"{label} ({count} clients)")
    axes.set(
        xlabel="round",
        ylabel=r"contribution $\Omega$",
        title="Contribution of each client that took part",
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
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
