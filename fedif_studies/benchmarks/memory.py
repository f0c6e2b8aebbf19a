"""Memory and seconds of a server that takes in many large updates: FedIF's rounds in one process.

Clients train nothing: each adds a random update of its own to the model that it was sent. So the
memory that grows is the server's. A machine must have its anonymous memory; of its mapped files,
the system keeps as much in memory as fits. The seconds of a round are compared with a floor: the
time to write the updates' floats into a mapped file and to read them twice.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Annotated, cast

import numpy as np
import torch
import typer
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.instructions import round_of
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Scalar
from fedif_flower.tasks.config import OWN
from fedif_flower.tasks.task import Task
from fedif_studies.benchmarks.common import (
    Figure,
    alone,
    memory_sizes,
    report,
    run_benchmark,
    sampling,
)

ROUNDS = 2  # In the second round, the server still holds updates and models of the first.
app = ClientApp()


@dataclass(frozen=True)
class WideFederation:
    """The number of clients, and the width of a model with two layers, the first a square one."""

    clients: int
    width: int

    def model(self) -> nn.Module:
        """Return the initial model."""
        return nn.Sequential(
            nn.Linear(self.width, self.width), nn.ReLU(), nn.Linear(self.width, 10)
        )

    @property
    def update_bytes(self) -> int:
        """The bytes of one update, in float32."""
        return sum(4 * parameter.numel() for parameter in self.model().parameters())


@dataclass(frozen=True)
class ServerCost:
    """The peaks of anonymous memory and of mapped files in memory, in bytes."""

    anonymous: int
    mapped: int


@dataclass(frozen=True)
class MemoryCost:
    """The server's peak memory, and the seconds of its last round and of the aggregation in it.

    ``floor_seconds`` is the time to write and read the round's floats, see :func:`_floor_seconds`.
    """

    memory: ServerCost
    seconds: float
    aggregation_seconds: float
    floor_seconds: float


@app.query()
def tell_partition(message: Message, context: Context) -> Message:
    """Reply with the partition that the node holds."""
    node = ConfigRecord({"partition-id": context.node_config["partition-id"], "attack": ""})
    return Message(RecordDict({"node": node}), reply_to=message)


@app.train()
def wander(message: Message, context: Context) -> Message:
    """Return the model with a random update, seeded by node and round."""
    # ``content.array_records`` would create a cycle of references, which keeps the arrays in memory
    # until the garbage collector runs.
    sent = cast(ArrayRecord, message.content["arrays"])
    generator = torch_generator("wander", context.node_id, round_of(message) or 0)
    new_arrays = {}
    for name, array in sent.items():
        values = torch.from_numpy(array.numpy())
        if not values.is_floating_point():
            new_arrays[name] = array  # A counter of batch normalisation.
            continue
        update = torch.randn(values.shape, generator=generator)
        new_arrays[name] = pack_array((values + 1e-4 * update).numpy())
    content = RecordDict()
    content["arrays"] = ArrayRecord(new_arrays)
    content["metrics"] = MetricRecord({"num-examples": 10, "train-loss": 1.0})
    return Message(content, reply_to=message)


def resident_bytes(process: int | str = "self") -> tuple[int, int]:
    """Return the resident bytes of a process that are anonymous, and those of files or shared."""
    sizes = memory_sizes(process)
    return sizes["RssAnon"], sizes["RssFile"] + sizes["RssShmem"]


def measure(federation: WideFederation) -> MemoryCost:
    """Run FedIF's rounds in this process, with all clients in each and default settings."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(100, federation.width, generator=generator)
    labels = torch.arange(100) % 10
    task = Task(
        name="memory",
        model=federation.model,
        client_data=lambda _: (inputs, labels),
        validation_data=lambda _: (inputs, labels),
        test_data=lambda _: (inputs, labels),
    )
    samples: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory() as folder, sampling(resident_bytes, samples, 0.05):
        settings: dict[str, Scalar] = {
            "task": OWN + task.name,
            "device": "cpu",
            "output-dir": folder,
            "num-clients": federation.clients,
            "fraction-train": 1.0,
            "num-server-rounds": ROUNDS,
        }
        config = RunConfig.from_run_config(settings)
        grid = LocalGrid(app, federation.clients)
        run = RunFolder(run_federation(grid, config, task=task))
        last_round = run.rounds.read()[-1]
    anonymous, mapped = zip(*samples, strict=True)
    return MemoryCost(
        memory=ServerCost(max(anonymous), max(mapped)),
        seconds=float(last_round["round_seconds"]),
        aggregation_seconds=float(last_round["aggregation_seconds"]),
        floor_seconds=_floor_seconds(federation),
    )


def _floor_seconds(federation: WideFederation) -> float:
    """Return the seconds to write a round's floats into a mapped file and to read them twice."""
    update = np.ones(federation.update_bytes // 4, dtype=np.float32)
    shape = (federation.clients, len(update))
    with tempfile.TemporaryFile() as file:
        began = time.perf_counter()
        received = np.memmap(file, np.float32, "w+", shape=shape)
        for row in received:
            row[:] = update
        for _ in range(2):
            for row in received:
                row.dot(update)
        return time.perf_counter() - began


def figures_of(federation: WideFederation, cost: MemoryCost) -> list[Figure]:
    """Return the server's memory beside the size of all updates, and a round's seconds."""
    all_updates = federation.clients * federation.update_bytes
    millions = federation.update_bytes / 4e6
    name = f"{federation.clients} clients, {millions:.1f} M parameters"
    return [
        memory_figure(f"{name}: anonymous memory", cost.memory.anonymous, all_updates, "< 2 GB"),
        memory_figure(f"{name}: mapped files", cost.memory.mapped, all_updates),
        _seconds_figure(f"{name}: a round", cost.seconds, cost.floor_seconds),
        _seconds_figure(f"{name}: its aggregation", cost.aggregation_seconds, cost.floor_seconds),
    ]


def _seconds_figure(name: str, seconds: float, floor: float) -> Figure:
    return Figure(name, seconds, floor, "s", seconds / floor, aim="")


def memory_figure(name: str, size: int, peer: int, aim: str = "") -> Figure:
    """Return a figure of bytes beside a peer's bytes, both in GB."""
    return Figure(name, size / 1e9, peer / 1e9, "GB", size / peer, aim)


def main(
    full: Annotated[bool, typer.Option(help="200 clients, 10.9 M parameters")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
    case: Annotated[str, typer.Option(help="measure this case alone, print JSON")] = "",
) -> None:
    """Print the table."""
    if case:
        federation = WideFederation(**json.loads(case))
        print(json.dumps(asdict(measure(federation))))
        return
    federation = WideFederation(200, 3300) if full else WideFederation(40, 1000)
    measured = alone("memory", "--case", json.dumps(asdict(federation)))
    cost = MemoryCost(**{**measured, "memory": ServerCost(**measured["memory"])})
    title = "A round in process: clients that do nothing"
    report(title, "memory", figures_of(federation, cost), write=write, full=full)


if __name__ == "__main__":
    run_benchmark(main)
