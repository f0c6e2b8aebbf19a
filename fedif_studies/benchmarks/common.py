"""What the benchmarks share: figures beside their peers, medians, the machine they ran on."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedif_studies.rows import RESULTS, machine


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
    print_table(title, figures)
    if not write:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    about = machine()
    path = RESULTS / f"bench-{'' if full else 'quick-'}{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*(field.name for field in fields(Figure)), *about])
        writer.writerows([*asdict(figure).values(), *about.values()] for figure in figures)


def read_figures(path: Path) -> list[Figure]:
    """Read what :func:`report` wrote."""
    with path.open(newline="") as file:
        return [
            Figure(
                name=row["name"],
                ours=float(row["ours"]),
                peer=float(row["peer"]),
                unit=row["unit"],
                ratio=float(row["ratio"]),
                aim=row["aim"],
                spread=row["spread"],
                note=row["note"],
            )
            for row in csv.DictReader(file)
        ]


def read_machine(path: Path) -> str:
    """Return in words when and where the figures of a file were taken."""
    with path.open(newline="") as file:
        row = next(csv.DictReader(file))
    place = row["gpu"] or f"{row['processor']}, {row['cores']} cores"
    versions = f"Python {row['python']}, torch {row['torch']}, flwr {row['flwr']}"
    return f"{row['date']}, {place}, threads: {row['threads']}, {versions}"


def print_table(title: str, figures: Sequence[Figure]) -> None:
    """Print figures with their ratios and aims."""
    table = Table(title=title)
    for column in ("figure", "ours", "peer", "ratio", "aim"):
        table.add_column(column, justify="left" if column in ("figure", "aim") else "right")
    for figure in figures:
        ours, peer = (f"{value:.4g} {figure.unit}" for value in (figure.ours, figure.peer))
        table.add_row(figure.name, ours, peer, f"{figure.ratio:.3g}", figure.aim)
    Console().print(table)
