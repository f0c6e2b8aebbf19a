"""Seconds a round and to start: ours on Ray beside the floor and the peers, one after the other.

The paper's CIFAR-10 protocol. A round of a peer whose clients are drawn otherwise is scaled to our
number of local steps. Start-up is a process's whole time less its rounds at their median.
``PFL_PYTHON`` and ``BYZFL_PYTHON`` name interpreters of environments with these peers and this
package; without, those of this environment are tried, and left out where they are not installed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common import Figure, report
from benchmarks.workload import PROJECT, RoundClock, Workload, synthetic_images
from fedif_flower.runtime.processes import available_cpus


@dataclass(frozen=True)
class Contender:
    """A module that runs a workload and prints its clock, perhaps in another environment.

    What runs in one process may take one thread or all: the faster way counts.
    """

    command: tuple[str, ...]
    interpreter: str = ""
    one_process: bool = False


FLOOR, OURS, OURS_FEDIF, STOCK = "floor", "ours", "ours, FedIF", "stock Flower app"
FLOOR_SORTED = "floor, longest clients first"
# Every second core is the server's own.
SPARE, SPARE_SIMPSON = "FedIF, spare core", "FedIF, spare core, contributions by Simpson's rule"
_OWN = ("benchmarks.throughput", "--ours")
_SPARE = ("--cpus-per-client", "2")
CONTENDERS: Mapping[str, Contender] = {
    FLOOR: Contender(("benchmarks.floor",)),
    FLOOR_SORTED: Contender(("benchmarks.floor", "--longest-first")),
    OURS: Contender((*_OWN, "fedavg")),
    OURS_FEDIF: Contender((*_OWN, "fedif")),
    SPARE: Contender((*_OWN, "fedif", *_SPARE)),
    SPARE_SIMPSON: Contender((*_OWN, "fedif", "--attribution", "simpson", *_SPARE)),
    STOCK: Contender(("benchmarks.stock_app",)),
    "pfl, one process": Contender(("benchmarks.peer_pfl",), "PFL_PYTHON", one_process=True),
    "ByzFL, one process": Contender(("benchmarks.peer_byzfl",), "BYZFL_PYTHON", one_process=True),
}
AIMS = {STOCK: ">= 1.5", "pfl, one process": "> 1", "ByzFL, one process": "> 1"}


@dataclass(frozen=True)
class Pace:
    """Milliseconds per local step in each timed round, steps a round, seconds besides rounds."""

    step_ms: list[float]
    steps: float
    start_up: float


def run_ours(strategy: str, workload: Workload, attribution: str, cpus_per_client: int) -> None:
    """Simulate in this process and print the clock."""
    from client_app import app
    from fedif_flower.run.rows import RoundRow
    from fedif_flower.runtime.simulation import simulate

    clock = RoundClock()

    def on_row(row: RoundRow) -> None:
        if row.round == 0:
            clock.start()
        else:
            clock.end(sum(map(workload.steps_of, workload.sampled(row.round))))

    with tempfile.TemporaryDirectory() as folder:
        config = workload.config(strategy, folder).replace(attribution=attribution)
        simulate(
            config,
            app,
            cpus_per_client=cpus_per_client,
            gpus_per_client=workload.gpus_per_client,
            on_row=on_row,
        )
    clock.print()


def pace_of(contender: Contender, workload: Workload, threads: int | None = None) -> Pace | str:
    """Run a contender in a process of its own; a string says why it could not run."""
    python = os.environ.get(contender.interpreter, sys.executable)
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    command = [python, "-m", *contender.command, workload.to_json()]
    # Files, not pipes: Ray's helpers keep these open after the process itself has ended.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        code = subprocess.run(
            command, stdout=output, stderr=errors, check=False, cwd=PROJECT, env=environment
        ).returncode
        wall = time.perf_counter() - started
        output.seek(0)
        errors.seek(0)
        if code:
            return (errors.read().strip() or "failed").splitlines()[-1]
        clock = json.loads(output.read().splitlines()[-1])
    seconds, steps = clock["seconds"], clock["steps"]
    step_ms = [1e3 * s / n for s, n in zip(seconds, steps, strict=True)]
    rounds = workload.rounds * statistics.median(seconds)
    return Pace(step_ms, statistics.fmean(steps), wall - rounds)


def measure(workload: Workload, times: int, contenders: Iterable[str]) -> dict[str, list[Pace]]:
    """Run the contenders in turns, ``times`` times each; tell who is left out and why.

    What runs in one process takes its turn once: it is slow, and far from the others.
    """
    paces: dict[str, list[Pace]] = {}
    left_out: dict[str, str] = {}
    for turn in range(times):
        for name in contenders:
            contender = CONTENDERS[name]
            if contender.one_process and turn:
                continue
            ways: list[int | None] = [None]
            if contender.one_process:
                ways = [1] if times == 1 else [1, available_cpus()]
            found = [] if name in left_out else [pace_of(contender, workload, n) for n in ways]
            left_out.update((name, pace) for pace in found if isinstance(pace, str))
            if ran := [pace for pace in found if isinstance(pace, Pace)]:
                fastest = min(ran, key=lambda pace: statistics.median(pace.step_ms))
                paces.setdefault(name, []).append(fastest)
    for name, reason in left_out.items():
        print(f"{name}: left out: {reason}")
    return paces


def figures_of(paces: Mapping[str, list[Pace]]) -> list[Figure]:
    """Compare the medians over all repetitions, for rounds of as many steps as ours have."""
    steps = paces[OURS][0].steps

    def seconds(name: str, statistic: Callable[[list[float]], float] = statistics.median) -> float:
        return 1e-3 * steps * statistic([ms for pace in paces[name] for ms in pace.step_ms])

    figures = []
    for name, peer, aim in (
        (OURS, FLOOR, "<= 1.05"),
        (OURS_FEDIF, FLOOR, "<= 1.10"),
        (FLOOR_SORTED, FLOOR, ""),
        (SPARE_SIMPSON, SPARE, "<= 1.03"),
    ):
        if not {name, peer} <= set(paces):
            continue
        spread = f"{seconds(name, min):.2f} to {seconds(name, max):.2f} s"
        ours, theirs = seconds(name), seconds(peer)
        title = f"round of {steps:.0f} steps: {name} / {peer}"
        figures.append(Figure(title, ours, theirs, "s", ours / theirs, aim, spread))
    for peer in filter(paces.__contains__, AIMS):
        ours, theirs = seconds(OURS), seconds(peer)
        spread = f"peer {seconds(peer, min):.2f} to {seconds(peer, max):.2f} s"
        title = f"round: speed over {peer}"
        figures.append(Figure(title, ours, theirs, "s", theirs / ours, AIMS[peer], spread))
    ours = statistics.median(pace.start_up for pace in paces[OURS])
    for peer in filter(paces.__contains__, AIMS):
        theirs = statistics.median(pace.start_up for pace in paces[peer])
        figures.append(Figure(f"start-up: ours / {peer}", ours, theirs, "s", ours / theirs, ""))
    return figures


def main(
    workload: Annotated[str, typer.Argument(help="internal")] = "",
    ours: Annotated[str, typer.Option(help="internal: run this strategy, print JSON")] = "",
    attribution: Annotated[str, typer.Option(help="internal: of this strategy")] = "off",
    cpus_per_client: Annotated[int, typer.Option(help="internal: of this strategy")] = 1,
    data_dir: Annotated[str, typer.Option(help="image folder of CIFAR-10; else random")] = "",
    full: Annotated[bool, typer.Option(help="the paper's E = 5, three repetitions")] = False,
    times: Annotated[int | None, typer.Option(help="repetitions")] = None,
    bare: Annotated[bool, typer.Option(help="ours beside bare processes alone")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    if ours:
        run_ours(ours, Workload.from_json(workload), attribution, cpus_per_client)
        return
    with tempfile.TemporaryDirectory() as folder:
        if not data_dir:
            os.environ["XDG_CACHE_HOME"] = folder
            data_dir = f"{folder}/images"
            synthetic_images(Path(data_dir), 50_000 if full else 10_000, 1_000)
        work = Workload(data_dir, rounds=8 if full else 5, epochs=5 if full else 1)
        contenders = (FLOOR, OURS, OURS_FEDIF) if bare else CONTENDERS
        paces = measure(work, times or (3 if full else 1), contenders)
    title = "Simulation throughput: CIFAR-10 CNN"
    name = "rounds" if bare else "throughput"
    report(title, name, figures_of(paces), write=write, full=full)


if __name__ == "__main__":
    typer.run(main)
