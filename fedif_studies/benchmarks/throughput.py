"""Seconds a round and to start: ours on Ray beside bare processes and a stock Flower app, in turns.

The paper's CIFAR-10 protocol. A round of the stock app, whose clients are drawn otherwise, is
scaled to our number of local steps. Start-up is a process's whole time less its rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedif_studies.benchmarks.common import Figure, report
from fedif_studies.benchmarks.workload import PROJECT, RoundClock, Workload, synthetic_images

FLOOR, OURS, OURS_FEDIF, STOCK = "floor", "ours", "ours, FedIF", "stock Flower app"
_OWN = ("fedif_studies.benchmarks.throughput", "--ours")
CONTENDERS: Mapping[str, tuple[str, ...]] = {
    FLOOR: ("fedif_studies.benchmarks.floor",),
    OURS: (*_OWN, "fedavg"),
    OURS_FEDIF: (*_OWN, "fedif"),
    STOCK: ("fedif_studies.benchmarks.stock_app",),
}


@dataclass(frozen=True)
class Pace:
    """Milliseconds per local step in each timed round, steps a round, seconds besides rounds."""

    step_ms: list[float]
    steps: float
    start_up: float


def run_ours(strategy: str, workload: Workload) -> None:
    """Simulate in this process and print the clock."""
    from client_app import app
    from fedif_flower.runtime.simulation import simulate
    from fedif_flower.strategies.reports import RoundReport

    clock = RoundClock()

    def on_row(row: RoundReport) -> None:
        if row.round == 0:
            clock.start()
        else:
            clock.end(sum(map(workload.steps_of, workload.sampled(row.round))))

    with tempfile.TemporaryDirectory() as folder:
        simulate(workload.config(strategy, folder), app, on_row=on_row)
    clock.print()


def pace_of(command: tuple[str, ...], workload: Workload) -> Pace:
    """Run a contender in a process of its own."""
    # A file, not a pipe: Ray's helpers keep it open after the process itself has ended.
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", *command, workload.to_json()],
            stdout=output,
            check=True,
            cwd=PROJECT,
        )
        wall = time.perf_counter() - started
        output.seek(0)
        clock = json.loads(output.read().splitlines()[-1])
    seconds, steps = clock["seconds"], clock["steps"]
    step_ms = [1e3 * s / n for s, n in zip(seconds, steps, strict=True)]
    rounds = workload.rounds * statistics.median(seconds)
    return Pace(step_ms, statistics.fmean(steps), wall - rounds)


def measure(workload: Workload, times: int, contenders: Iterable[str]) -> dict[str, list[Pace]]:
    """Run the contenders in turns, ``times`` times each."""
    paces: dict[str, list[Pace]] = {name: [] for name in contenders}
    for _ in range(times):
        for name, found in paces.items():
            found.append(pace_of(CONTENDERS[name], workload))
    return paces


def figures_of(paces: Mapping[str, list[Pace]]) -> list[Figure]:
    """Compare the medians over all repetitions, for rounds of as many steps as ours have."""
    steps = paces[OURS][0].steps
    seconds = {
        name: [1e-3 * steps * ms for pace in found for ms in pace.step_ms]
        for name, found in paces.items()
    }
    median = {name: statistics.median(values) for name, values in seconds.items()}
    figures = []
    for name, aim in ((OURS, "<= 1.05"), (OURS_FEDIF, "<= 1.10")):
        spread = f"{min(seconds[name]):.2f} to {max(seconds[name]):.2f} s"
        title = f"round of {steps:.0f} steps: {name} / {FLOOR}"
        ours, peer = median[name], median[FLOOR]
        figures.append(Figure(title, ours, peer, "s", ours / peer, aim, spread))
    if STOCK in paces:
        ours, peer = median[OURS], median[STOCK]
        spread = f"peer {min(seconds[STOCK]):.2f} to {max(seconds[STOCK]):.2f} s"
        title = f"round: speed over {STOCK}"
        figures.append(Figure(title, ours, peer, "s", peer / ours, ">= 1.5", spread))
        ours, peer = (statistics.median(p.start_up for p in paces[n]) for n in (OURS, STOCK))
        figures.append(Figure(f"start-up: ours / {STOCK}", ours, peer, "s", ours / peer, ""))
    return figures


def main(
    workload: Annotated[str, typer.Argument(help="internal")] = "",
    ours: Annotated[str, typer.Option(help="internal: run this strategy, print JSON")] = "",
    data_dir: Annotated[str, typer.Option(help="image folder of CIFAR-10; else random")] = "",
    full: Annotated[bool, typer.Option(help="the paper's E = 5, three repetitions")] = False,
    times: Annotated[int | None, typer.Option(help="repetitions")] = None,
    bare: Annotated[bool, typer.Option(help="ours beside bare processes alone")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    if ours:
        run_ours(ours, Workload.from_json(workload))
        return
    with tempfile.TemporaryDirectory() as folder:
        if not data_dir:
            os.environ["XDG_CACHE_HOME"] = folder
            data_dir = f"{folder}/images"
            synthetic_images(Path(data_dir), 50_000 if full else 10_000, 1_000)
        work = Workload(data_dir, rounds=8 if full else 5, epochs=5 if full else 1)
        contenders = [name for name in CONTENDERS if not (bare and name == STOCK)]
        paces = measure(work, times or (3 if full else 1), contenders)
    name = "rounds" if bare else "throughput"
    title = "Simulation throughput: CIFAR-10 CNN"
    report(title, name, figures_of(paces), write=write, full=full)


if __name__ == "__main__":
    typer.run(main)
