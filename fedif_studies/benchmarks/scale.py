"""What the simulation itself costs: clients that return what they receive, a little longer, on Ray.

A round's milliseconds for 100 to a million simulated clients, and for 1 to 100 million parameters;
peak memory of all processes together. A recorded federation is
FedIF's with scores, records, an evaluation and a checkpoint in every round.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from threading import Event, Thread
from typing import Annotated

import numpy as np
import psutil
import torch
import typer
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from torch import nn

from fedif_flower.messages.arrays import pack_array
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.ray_grid import ray_grid
from fedif_flower.server.nodes import identify_clients
from fedif_flower.settings import Scalar
from fedif_flower.strategies import Setup
from fedif_flower.strategies.fedavg import FedAvg
from fedif_flower.tasks.config import OWN
from fedif_flower.tasks.task import Task
from fedif_studies.benchmarks.common import Figure, alone, report

MILLION = 10**6
app = ClientApp()


@dataclass(frozen=True)
class Case:
    """So many clients, so many of them in a round, a model of ``size`` parameters."""

    clients: int
    sampled: int
    size: int
    rounds: int
    recorded: bool = False


@dataclass(frozen=True)
class Cost:
    """Milliseconds of a round but the first, and peak bytes of all processes."""

    median: float
    low: float
    high: float
    peak: int


@contextmanager
def sampled_memory(found: list[int]) -> Iterator[None]:
    """Add the proportional memory of all processes together, five times a second, while entered.

    Of PSS, pages that processes share count once; Ray's object store lies in such pages.
    """
    stop, driver = Event(), psutil.Process()

    def sample() -> None:
        while not stop.wait(0.2):
            found.append(sum(map(_pss, [driver, *driver.children(recursive=True)])))

    thread = Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _pss(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def measure_alone(case: Case) -> Cost:
    """Measure a case in a process of its own."""
    return Cost(**alone("scale", "--case", json.dumps(asdict(case))))


@app.train()
def lengthen(message: Message, _: Context) -> Message:
    """Return the model a thousandth longer."""
    sent = message.content.array_records["arrays"]
    longer = {name: pack_array(a.numpy() * np.float32(1.001)) for name, a in sent.items()}
    content = RecordDict()
    content["arrays"] = ArrayRecord(longer)
    content["metrics"] = MetricRecord({"num-examples": 1})
    return Message(content, reply_to=message)


def measure(case: Case) -> Cost:
    """Run one case in this process, whose peak memory it needs for itself."""
    ends, memory = list[float](), list[int]()

    def note(*_: object) -> None:
        ends.append(time.perf_counter())

    rounds = _recorded if case.recorded else _bare
    with sampled_memory(memory), ray_grid(app, case.clients) as grid:
        rounds(case, grid, note)
    # Ray starts during the first round; before it the first model is evaluated.
    found = [1e3 * (end - start) for start, end in itertools.pairwise(ends[1:])]
    return Cost(statistics.median(found), min(found), max(found), max(memory))


def _bare(case: Case, grid: Grid, note: Callable[..., None]) -> None:
    """Run FedAvg's rounds without records."""
    strategy = FedAvg(
        fraction_train=case.sampled / case.clients,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=case.clients,
        setup=Setup(identify=identify_clients, device="cpu"),
    )
    model = ArrayRecord({"weight": pack_array(np.zeros(case.size, dtype=np.float32))})
    strategy.start(grid, model, num_rounds=case.rounds, evaluate_fn=note)


def _recorded(case: Case, grid: Grid, note: Callable[..., None]) -> None:
    """Run a whole federation of FedIF, whose clients lengthen the model."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(100, case.size // 10, generator=generator)
    data = inputs, torch.arange(100) % 10
    task = Task(
        name="scale",
        model=lambda: nn.Linear(case.size // 10, 10),
        client_data=lambda _: data,
        validation_data=lambda _: data,
        test_data=lambda _: data,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Scalar] = {
            **{"task": OWN + task.name, "device": "cpu", "output-dir": folder},
            **{"num-clients": case.clients, "fraction-train": case.sampled / case.clients},
            **{"num-server-rounds": case.rounds, "checkpoint-every": 1},
        }
        run_federation(grid, RunConfig.from_run_config(settings), note, task=task)


def figures_of(full: bool, rounds: int) -> list[Figure]:
    """Measure every case, each beside the smallest of its kind."""
    figures = []
    counts = (100, 1_000, 10_000) if full else (100, 1_000)
    grids = [(sampled, counts, "< 2.5", False) for sampled in (10, 100)]
    if full:
        grids += [(1_000, (10_000, MILLION), "<= 2", recorded) for recorded in (False, True)]
    for sampled, counts, aim, recorded in grids:
        costs = {n: measure_alone(Case(n, sampled, 10_000, rounds, recorded)) for n in counts}
        least = costs[counts[0]]
        for clients, cost in costs.items():
            name = f"{clients:,} clients, {sampled:,} a round{', recorded' * recorded}"
            spread = f"{cost.low:.0f} to {cost.high:.0f} ms"
            ratio = cost.median / least.median
            figures += [
                Figure(f"{name}: round", cost.median, least.median, "ms", ratio, aim, spread),
                _memory(name, cost, least.peak, "<= 2" if clients == MILLION else "flat"),
            ]
    for millions in (1, 11, 100) if full else (1, 11):
        size = millions * MILLION
        cost = measure_alone(Case(10, 10, size, 4 if millions == 100 else rounds))
        name, spread = f"10 clients, {millions} M parameters", f"{cost.low:.0f} to {cost.high:.0f}"
        figures += [
            Figure(f"{name}: round", cost.median, 0.0, "ms", 0.0, "", spread),
            _memory(f"{name}, beside m x d floats", cost, 40 * size, "<= 12 GB at 100 M"),
        ]
    return figures


def _memory(name: str, cost: Cost, peer: float, aim: str) -> Figure:
    title, peak = f"{name}: peak memory", cost.peak
    return Figure(title, peak / 1e9, peer / 1e9, "GB", peak / peer, aim)


def main(
    full: Annotated[bool, typer.Option(help="also a million clients, 100 M parameters")] = False,
    rounds: Annotated[int, typer.Option(help="rounds of each case")] = 12,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
    case: Annotated[str, typer.Option(help="measure this case alone, print JSON")] = "",
) -> None:
    """Print the table."""
    if case:
        print(json.dumps(asdict(measure(Case(**json.loads(case))))))
        return
    title = "Scale: clients that do nothing"
    report(title, "scale", figures_of(full, rounds), write=write, full=full)


if __name__ == "__main__":
    typer.run(main)
