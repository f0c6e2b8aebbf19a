"""What the benchmarks share: timings, figures beside those of a peer, and their tables."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

from rich.console import Console

from fedif_flower.tables import ResultTable
from fedif_studies.lab.commands import run_study
from fedif_studies.rows import RESULTS, loaded_revision, machine, replace_all_rows

T = TypeVar("T")
MODELS = {
    "CIFAR-10 CNN": ("cnn", (3, 32, 32)),
    "Fashion-MNIST CNN": ("cnn-batch-norm", (1, 28, 28)),
}
_SEED = "0"  # The seed of all models and data.


@dataclass(frozen=True)
class Timing:
    """Seconds of repeated calls: their median, least and most."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Figure:
    """One line of a benchmark: a figure of this project beside that of a peer, from the same run.

    Attributes
    ----------
    name : str
        What is measured.
    ours, peer : float
        The two figures.
    unit : str
        Their unit.
    ratio : float
        The ratio that ``aim`` is about: of the figures, or of the speeds.
    aim : str
        What the ratio should be, such as ``"<= 1.1"``; may be empty.
    spread : str
        The least and the most of ``ours``.
    note : str
        A further remark.
    """

    name: str
    ours: float
    peer: float
    unit: str
    ratio: float
    aim: str
    spread: str = ""
    note: str = ""


@contextmanager
def sampling(read: Callable[[], T], samples: list[T], seconds: float) -> Iterator[None]:
    """Append ``read()`` to ``samples`` every so many seconds, in a thread, while entered."""
    stop = Event()

    def sample() -> None:
        while not stop.wait(seconds):
            samples.append(read())

    thread = Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def memory_sizes(process: int | str = "self") -> dict[str, int]:
    """Return the sizes of a process's memory in bytes, by their names in proc(5) (Linux)."""
    sizes = {}
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        name, _, size = line.partition(":")
        if name.startswith(("Vm", "Rss")):  # In KiB: "VmRSS:   1024 kB".
            sizes[name] = 1024 * int(size.split()[0])
    return sizes


def beside(name: str, ours: Timing, peer: float, aim: str = "", unit: str = "ms") -> Figure:
    """Return a figure of our seconds beside a peer's seconds, both in milliseconds."""
    return Figure(
        name=name,
        ours=1e3 * ours.median,
        peer=1e3 * peer,
        unit=unit,
        ratio=ours.median / peer,
        aim=aim,
        spread=f"{1e3 * ours.low:.3g} to {1e3 * ours.high:.3g} {unit}",
    )


def alone(module: str, *options: str) -> Any:
    """Run a benchmark's module in a process of its own; return the JSON in its last line."""
    # A file, since Ray's helpers would keep a pipe open after the process itself has ended.
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
    """Return the seconds of ``times`` calls, after one that warms up; ``before`` is not timed."""
    seconds = []
    for _ in range(times + 1):
        before()
        started = clock()
        call()
        seconds.append(clock() - started)
    warm = seconds[1:]
    return Timing(statistics.median(warm), min(warm), max(warm))


def run_benchmark(main: Callable[..., None]) -> None:
    """Run a benchmark's function as :func:`~fedif_studies.lab.commands.run_study` does.

    The rows that it reports name the revision that is loaded now, before anything is measured.
    """
    loaded_revision()
    run_study(main)


def report(
    title: str,
    name: str,
    figures: Sequence[Figure],
    *,
    write: bool,
    full: bool = True,
) -> None:
    """Print a table, and write ``docs/results/bench-<name>.csv`` if ``write``.

    A quick run (not ``full``) writes ``bench-quick-<name>.csv``, which should not be quoted.
    """
    heading = ["figure", "ours", "peer", "ratio", "aim", "range, note"]
    lines = [_line(figure) for figure in figures]
    ResultTable(title, heading, lines, num_labels=1).print(Console())
    if write:
        kind = "bench" if full else "bench-quick"
        origin = {"revision": loaded_revision(), "seed": _SEED, **machine()}
        rows = [{**asdict(figure), **origin} for figure in figures]
        replace_all_rows(RESULTS / f"{kind}-{name}.csv", rows)


def _line(figure: Figure) -> list[str]:
    """Return a figure as a line of the table."""
    remarks = [remark for remark in (figure.spread, figure.note) if remark]
    return [
        figure.name,
        f"{figure.ours:.4g} {figure.unit}".strip(),
        f"{figure.peer:.4g} {figure.unit}".strip(),
        f"{figure.ratio:.3g}",
        figure.aim,
        "; ".join(remarks),
    ]
