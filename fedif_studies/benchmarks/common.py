"""What the benchmarks share: figures beside their peers, medians, the machine they ran on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console

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


def repeat(
    call: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter
) -> Timing:
    """Return the seconds that ``call`` takes, after one call that does not count."""
    seconds = []
    for _ in range(times + 1):
        started = clock()
        call()
        seconds.append(clock() - started)
    return Timing(statistics.median(seconds[1:]), min(seconds[1:]), max(seconds[1:]))


def report(
    title: str, name: str, figures: Sequence[Figure], *, write: bool, full: bool = True
) -> None:
    """Print a table, and write ``docs/results/bench-<name>.csv`` if ``write``.

    A quick run (not ``full``) writes ``bench-quick-<name>.csv``: nothing to be quoted.
    """
    lines = []
    for figure in figures:
        ours, peer = (f"{v:.4g} {figure.unit}".strip() for v in (figure.ours, figure.peer))
        remark = "; ".join(filter(None, (figure.spread, figure.note)))
        lines.append([figure.name, ours, peer, f"{figure.ratio:.3g}", figure.aim, remark])
    heading = ["figure", "ours", "peer", "ratio", "aim", "range, note"]
    ResultTable(title, heading, lines, num_labels=1).print(Console())
    if write:
        path = RESULTS / f"bench-{'' if full else 'quick-'}{name}.csv"
        add_rows(path, [{**asdict(figure), **machine()} for figure in figures], anew=True)
