"""What the benchmarks share: figures beside their peers, medians, the machine they ran on."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from fedif_flower.tables import ResultTable
from fedif_studies.rows import RESULTS, add_rows, machine, revision


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


def beside(name: str, ours: Timing, peer: float, aim: str = "", unit: str = "ms") -> Figure:
    """Return seconds of ours beside those of a peer, in thousandths."""
    spread = f"{1e3 * ours.low:.3g} to {1e3 * ours.high:.3g} {unit}"
    return Figure(name, 1e3 * ours.median, 1e3 * peer, unit, ours.median / peer, aim, spread)


def alone(module: str, *options: str) -> Any:
    """Run one of these modules in a process of its own; return the JSON in its last line."""
    # A file, not a pipe: Ray's helpers keep it open after the process itself has ended.
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "-m", f"fedif_studies.benchmarks.{module}", *options]
        subprocess.run(command, stdout=output, check=True, cwd=RESULTS.parents[1])
        output.seek(0)
        return json.loads(output.read().splitlines()[-1])


def repeat(
    call: Callable[[], object],
    times: int,
    clock: Callable[[], float] = time.perf_counter,
    *,
    before: Callable[[], object] = lambda: None,
) -> Timing:
    """Return the seconds that ``call`` takes without what comes ``before``; the first is no use."""
    seconds = []
    for _ in range(times + 1):
        before()
        started = clock()
        call()
        seconds.append(clock() - started)
    return Timing(statistics.median(seconds[1:]), min(seconds[1:]), max(seconds[1:]))


def report(
    title: str,
    name: str,
    figures: Sequence[Figure],
    *,
    write: bool,
    full: bool = True,
    seed: str = "0",
) -> None:
    """Print a table, and write ``docs/results/bench-<name>.csv`` if ``write``.

    A quick run (not ``full``) writes ``bench-quick-<name>.csv``: nothing to be quoted. ``seed`` is
    that of models and data.
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
        origin = {"revision": revision(), "seed": seed, **machine()}
        add_rows(path, [{**asdict(figure), **origin} for figure in figures], anew=True)
