"""What the benchmarks share: figures beside their peers, medians, the machine they ran on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from fedif_flower.run.rows import read_rows
from fedif_flower.tables import ResultTable
from fedif_studies.rows import RESULTS, add_rows, machine


@dataclass(frozen=True)
class Timing:
    """Seconds of repeated calls."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Figure:
    """One line of a benchmark: ours beside a peer's, both from the same run.

    ``ratio`` is whatever the aim is about; ``spread`` the least and most of ours.
    """

    name: str
    ours: float
    peer: float
    unit: str
    ratio: float
    aim: str
    spread: str = ""
    note: str = ""


def repeat(call: Callable[[], object], times: int, *, warm_up: int = 1) -> Timing:
    """Return the seconds that ``call`` takes, after ``warm_up`` calls that do not count."""
    for _ in range(warm_up):
        call()
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return Timing(statistics.median(seconds), min(seconds), max(seconds))


def report(
    title: str, name: str, figures: Sequence[Figure], *, write: bool, full: bool = True
) -> None:
    """Print a table, and write ``docs/results/bench-<name>.csv`` if ``write``.

    A quick run (not ``full``) writes ``bench-quick-<name>.csv``: nothing to be quoted.
    """
    figure_table(title, figures).print(Console())
    if write:
        about = machine()
        path = RESULTS / f"bench-{'' if full else 'quick-'}{name}.csv"
        rows = [{**asdict(figure), **about} for figure in figures]
        add_rows(path, rows, anew=True)


def read_figures(path: Path) -> list[Figure]:
    """Read what :func:`report` wrote."""
    return [
        Figure(
            *(row["name"], float(row["ours"]), float(row["peer"]), row["unit"]),
            *(float(row["ratio"]), row["aim"], row["spread"], row["note"]),
        )
        for row in read_rows(path)
    ]


def read_machine(path: Path) -> str:
    """Return in words when and where the figures of a file were taken."""
    row = read_rows(path)[0]
    place = row["gpu"] or f"{row['processor']}, {row['cores']} cores"
    versions = f"Python {row['python']}, torch {row['torch']}, flwr {row['flwr']}"
    return f"{row['date']}, {place}, threads: {row['threads']}, {versions}"


def figure_table(title: str, figures: Sequence[Figure]) -> ResultTable:
    """Return figures with their ratios and aims."""
    lines = []
    for figure in figures:
        ours, peer = (f"{v:.4g} {figure.unit}".strip() for v in (figure.ours, figure.peer))
        remark = "; ".join(filter(None, (figure.spread, figure.note)))
        lines.append([figure.name, ours, peer, f"{figure.ratio:.3g}", figure.aim, remark])
    heading = ["figure", "ours", "peer", "ratio", "aim", "range, note"]
    return ResultTable(title, heading, lines, num_labels=1)
