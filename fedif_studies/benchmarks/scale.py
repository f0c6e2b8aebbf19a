"""The cost of the simulation itself: clients on Ray that return the model a little longer.

The figures are the milliseconds of a round for 100 to a million simulated clients and for 1 to 100
million parameters, and the peak memory of all processes together. A recorded federation is one of
FedIF with scores, records, an evaluation and a checkpoint in every round.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Annotated, cast

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
from fedif_studies.benchmarks.common import Figure, alone, report, run_benchmark, sampling

MILLION = 10**6
app = ClientApp()


@dataclass(frozen=True)
class Federation:
    """A federation of ``clients`` clients, of which ``sampled`` are in a round.

    The model has ``size`` parameters. ``recorded``: whether it is a whole run of FedIF.
    """

    clients: int
    sampled: int
    size: int
    rounds: int
    recorded: bool = False


@dataclass(frozen=True)
class RoundCost:
    """Milliseconds of a round (without the first one), and the peak bytes of all processes."""

    median: float
    low: float
    high: float
    peak: int


@contextmanager
def sampled_memory(samples: list[int]) -> Iterator[None]:
    """Append the memory of all processes together, five times a second, while entered.

    Memory is the proportional set size (PSS), which counts pages that processes share only once.
    Ray's object store consists of such pages.
    """
    driver = psutil.Process()

    def read() -> int:
        everybody = [driver, *driver.children(recursive=True)]
        return sum(_pss(process) for process in everybody)

    with sampling(read, samples, 0.2):
        yield


def _pss(process: psutil.Process) -> int:
    """Return a process's PSS in bytes; 0 if the process has ended."""
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def measure_alone(federation: Federation) -> RoundCost:
    """Measure a federation in a process of its own."""
    return RoundCost(**alone("scale", "--case", json.dumps(asdict(federation))))


@app.train()
def lengthen(message: Message, _: Context) -> Message:
    """Return the model with all parameters multiplied by 1.001."""
    # ``content.array_records`` would create a cycle of references, which keeps the arrays in memory
    # until the garbage collector runs.
    sent = cast(ArrayRecord, message.content["arrays"])
    longer = {}
    for name, array in sent.items():
        longer[name] = pack_array(array.numpy() * np.float32(1.001))
    content = RecordDict()
    content["arrays"] = ArrayRecord(longer)
    content["metrics"] = MetricRecord({"num-examples": 1})
    return Message(content, reply_to=message)


def measure(federation: Federation) -> RoundCost:
    """Run one federation in this process, which should do nothing else: its memory counts."""
    ends: list[float] = []
    memory: list[int] = []

    def note_end(*_: object) -> None:
        ends.append(time.perf_counter())

    run_rounds = _run_recorded if federation.recorded else _run_bare
    with sampled_memory(memory), ray_grid(app, federation.clients) as grid:
        run_rounds(federation, grid, note_end)
    # ends[0] is the evaluation before the first round. Ray starts during the first round, which
    # ends at ends[1] and is left out.
    milliseconds = [1e3 * (end - start) for start, end in itertools.pairwise(ends[1:])]
    return RoundCost(
        median=statistics.median(milliseconds),
        low=min(milliseconds),
        high=max(milliseconds),
        peak=max(memory),
    )


def _run_bare(federation: Federation, grid: Grid, note_end: Callable[..., None]) -> None:
    """Run FedAvg's rounds without writing records."""
    strategy = FedAvg(
        fraction_train=federation.sampled / federation.clients,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=federation.clients,
        setup=Setup(identify=identify_clients, device="cpu"),
    )
    model = ArrayRecord({"weight": pack_array(np.zeros(federation.size, dtype=np.float32))})
    strategy.start(grid, model, num_rounds=federation.rounds, evaluate_fn=note_end)


def _run_recorded(federation: Federation, grid: Grid, note_end: Callable[..., None]) -> None:
    """Run a whole federation of FedIF, with records and checkpoints."""
    features = federation.size // 10
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(100, features, generator=generator)
    labels = torch.arange(100) % 10
    task = Task(
        name="scale",
        model=lambda: nn.Linear(features, 10),
        client_data=lambda _: (inputs, labels),
        validation_data=lambda _: (inputs, labels),
        test_data=lambda _: (inputs, labels),
    )
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Scalar] = {
            "task": OWN + task.name,
            "device": "cpu",
            "output-dir": folder,
            "num-clients": federation.clients,
            "fraction-train": federation.sampled / federation.clients,
            "num-server-rounds": federation.rounds,
            "checkpoint-every": 1,
        }
        run_federation(grid, RunConfig.from_run_config(settings), note_end, task=task)


def figures_of(full: bool, rounds: int) -> list[Figure]:
    """Measure every federation, and compare it with the smallest of its kind."""
    figures = []
    counts = (100, 1_000, 10_000) if full else (100, 1_000)
    for sampled in (10, 100):
        smallest = Federation(counts[0], sampled, 10_000, rounds)
        figures += _by_clients(smallest, counts, "< 2.5")
    if full:
        for recorded in (False, True):
            smallest = Federation(10_000, 1_000, 10_000, rounds, recorded)
            figures += _by_clients(smallest, (10_000, MILLION), "<= 2")
    for millions in (1, 11, 100) if full else (1, 11):
        # A round with 100 million parameters takes long, so there are fewer.
        figures += _by_size(millions, rounds=4 if millions == 100 else rounds)
    return figures


def _by_clients(smallest: Federation, counts: Sequence[int], aim: str) -> list[Figure]:
    """Measure federations with these numbers of clients, and compare them with the first."""
    costs = [measure_alone(replace(smallest, clients=clients)) for clients in counts]
    least = costs[0]
    figures = []
    for clients, cost in zip(counts, costs, strict=True):
        name = f"{clients:,} clients, {smallest.sampled:,} a round"
        if smallest.recorded:
            name += ", recorded"
        spread = f"{cost.low:.0f} to {cost.high:.0f} ms"
        ratio = cost.median / least.median
        memory_aim = "<= 2" if clients == MILLION else "flat"
        figures += [
            Figure(f"{name}: round", cost.median, least.median, "ms", ratio, aim, spread),
            _memory(name, cost, least.peak, memory_aim),
        ]
    return figures


def _by_size(millions: int, rounds: int) -> list[Figure]:
    """Measure ten clients with a model of so many million parameters."""
    size = millions * MILLION
    cost = measure_alone(Federation(10, 10, size, rounds))
    name = f"10 clients, {millions} M parameters"
    spread = f"{cost.low:.0f} to {cost.high:.0f}"
    all_updates = 10 * size * 4  # The bytes of m x d floats.
    return [
        Figure(f"{name}: round", cost.median, 0.0, "ms", 0.0, "", spread),
        _memory(f"{name}, beside m x d floats", cost, all_updates, "<= 12 GB at 100 M"),
    ]


def _memory(name: str, cost: RoundCost, peer: float, aim: str) -> Figure:
    title = f"{name}: peak memory"
    return Figure(title, cost.peak / 1e9, peer / 1e9, "GB", cost.peak / peer, aim)


def main(
    full: Annotated[bool, typer.Option(help="also a million clients, 100 M parameters")] = False,
    rounds: Annotated[int, typer.Option(help="rounds of each case")] = 12,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
    case: Annotated[str, typer.Option(help="measure this case alone, print JSON")] = "",
) -> None:
    """Print the table."""
    if case:
        federation = Federation(**json.loads(case))
        print(json.dumps(asdict(measure(federation))))
        return
    title = "Scale: clients that do nothing"
    report(title, "scale", figures_of(full, rounds), write=write, full=full)


if __name__ == "__main__":
    run_benchmark(main)
