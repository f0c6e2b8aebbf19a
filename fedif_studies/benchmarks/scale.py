"""What the simulation itself costs: clients that return what they receive, a little longer, on Ray.

A round's milliseconds for 100 to a million simulated clients, and for 1 to 100 million parameters;
peak memory of the driver, of Ray's processes, and of all of them together. A recorded federation is
FedIF's with scores, records, an evaluation and a checkpoint in every round.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import torch
import typer
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from torch import nn

from fedif_flower.messages.arrays import pack_array
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.simulation import run_on_ray
from fedif_flower.settings import Scalar
from fedif_flower.strategies import Setup
from fedif_flower.strategies.fedavg import FedAvg
from fedif_flower.strategies.nodes import identify_clients
from fedif_flower.tasks.config import OWN
from fedif_flower.tasks.task import Task
from fedif_studies.benchmarks.common import Figure, report
from fedif_studies.benchmarks.memory import MemoryWatch
from fedif_studies.benchmarks.rounds import Cost, cost_of, measure_alone

MILLION = 10**6
MODULE = "fedif_studies.benchmarks.scale"  # This one: its name is __main__ where it is run.
app = ClientApp()


@dataclass(frozen=True)
class Case:
    """So many clients, so many of them in a round, a model of ``size`` parameters."""

    clients: int
    sampled: int
    size: int
    rounds: int
    recorded: bool = False


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
    if case.recorded:
        return measure_recorded(case)
    ends: list[float] = []

    def main(grid: Grid) -> None:
        strategy = FedAvg(
            fraction_train=case.sampled / case.clients,
            fraction_evaluate=0.0,
            min_train_nodes=1,
            min_available_nodes=case.clients,
            setup=Setup(identify=identify_clients, device="cpu"),
        )
        model = ArrayRecord({"weight": pack_array(np.zeros(case.size, dtype=np.float32))})

        def on_round(_round: int, _arrays: ArrayRecord) -> None:
            ends.append(time.perf_counter())

        strategy.start(grid, model, num_rounds=case.rounds, evaluate_fn=on_round)

    with MemoryWatch() as watch:
        run_on_ray(main, app, num_clients=case.clients)
    return cost_of(ends, watch)


def measure_recorded(case: Case) -> Cost:
    """Run a whole federation of FedIF, whose clients lengthen the model."""
    inputs, labels = torch.rand(100, case.size // 10), torch.arange(100) % 10
    task = Task(
        name="scale",
        model=lambda: nn.Linear(case.size // 10, 10),
        client_data=lambda _: (inputs, labels),
        validation_data=lambda _: (inputs, labels),
        test_data=lambda _: (inputs, labels),
    )
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder, MemoryWatch() as watch:
        settings: dict[str, Scalar] = {
            "task": OWN + task.name,
            "num-clients": case.clients,
            "fraction-train": case.sampled / case.clients,
            "num-server-rounds": case.rounds,
            "checkpoint-every": 1,
            "device": "cpu",
            "output-dir": folder,
        }
        config = RunConfig.from_run_config(settings)

        def main(grid: Grid) -> None:
            run_federation(grid, config, lambda _: ends.append(time.perf_counter()), task=task)

        run_on_ray(main, app, num_clients=case.clients)
    return cost_of(ends, watch)


def figures_of(full: bool, rounds: int) -> list[Figure]:
    """Measure every case, each beside the smallest of its kind."""
    figures = []
    counts = (100, 1_000, 10_000) if full else (100, 1_000)
    grids = [(sampled, counts, "< 2.5", False) for sampled in (10, 100)]
    if full:
        grids += [(1_000, (10_000, MILLION), "<= 2", recorded) for recorded in (False, True)]
    for sampled, counts, aim, recorded in grids:
        costs = {
            n: measure_alone(MODULE, Case(n, sampled, 10_000, rounds, recorded)) for n in counts
        }
        least = costs[counts[0]]
        for clients, cost in costs.items():
            name = f"{clients:,} clients, {sampled:,} a round{', recorded' * recorded}"
            spread = f"{cost.low:.0f} to {cost.high:.0f} ms"
            ratio, memory = cost.median / least.median, cost.together / least.together
            figures += [
                Figure(f"{name}: round", cost.median, least.median, "ms", ratio, aim, spread),
                Figure(
                    f"{name}: peak memory",
                    cost.together / 1e9,
                    least.together / 1e9,
                    "GB",
                    memory,
                    "<= 2" if clients == MILLION else "flat",
                    f"driver {cost.driver / 1e9:.2f}, Ray {cost.others / 1e9:.2f} GB",
                ),
            ]
    for millions in (1, 11, 100) if full else (1, 11):
        cost = measure_alone(
            MODULE, Case(10, 10, millions * MILLION, 4 if millions == 100 else rounds)
        )
        floats = 4e-9 * millions * MILLION * 10
        name, spread = f"10 clients, {millions} M parameters", f"{cost.low:.0f} to {cost.high:.0f}"
        figures += [
            Figure(f"{name}: round / m x d floats", cost.median, floats, "ms, GB", 0.0, "", spread),
            Figure(
                f"{name}: peak memory / m x d floats",
                cost.together / 1e9,
                floats,
                "GB",
                cost.together / 1e9 / floats,
                "<= 12 GB at 100 M",
                f"driver {cost.driver / 1e9:.2f}, Ray {cost.others / 1e9:.2f} GB",
            ),
        ]
    return figures


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
    report(
        "Scale: clients that do nothing", "scale", figures_of(full, rounds), write=write, full=full
    )


if __name__ == "__main__":
    typer.run(main)
