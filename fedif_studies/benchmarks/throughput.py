"""Seconds of a round: this package on Ray, beside the same SGD steps in as many bare processes.

The protocol is the paper's for CIFAR-10, on a folder of images: 100 clients, 10 in a round, batches
of 16, Dirichlet(1). Each contender runs in a process of its own; they take turns.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated

import torch
import torch.multiprocessing as processes
import typer
from torch import Tensor

from fedif_flower.client.training import train_local
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.config import RunConfig
from fedif_flower.seeding import numpy_generator
from fedif_flower.server.nodes import sample_clients
from fedif_flower.settings import Scalar
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.data.datasets import Normalization, load_dataset, to_pixels
from fedif_flower.tasks.data.partition import dirichlet_partition
from fedif_flower.tasks.models import build_model
from fedif_studies.benchmarks.common import Figure, alone, report, run_benchmark

CLIENTS = 100
FLOOR = "floor"  # The contender that only trains, in bare processes.
AIMS = {"fedavg": "<= 1.10", "fedif": "<= 1.10"}
_model = build_model("cnn", (3, 32, 32), 10, seed=0)


class Workload:
    """What every contender trains: the same clients, examples and steps."""

    def __init__(self, data_dir: str, rounds: int, epochs: int) -> None:
        self.data_dir = data_dir
        self.rounds = rounds
        # Batches, learning rate and momentum of the paper.
        self.training = TrainingConfig(
            local_epochs=epochs, batch_size=16, learning_rate=0.001, momentum=0.9
        )
        self.dataset = load_dataset("image-folder", data_dir)

    @property
    def timed_rounds(self) -> range:
        """The rounds that count: not the first, which warms up, nor the last, which evaluates."""
        return range(2, self.rounds)

    @cached_property
    def partitions(self) -> list[Tensor]:
        """The indices of each client's images."""
        parts = dirichlet_partition(self.dataset.train.labels, CLIENTS, 1.0, 0)
        return [torch.from_numpy(part) for part in parts]

    def config(self, strategy: str, output_dir: str) -> RunConfig:
        """Return a run config for this workload, without evaluation in the rounds that count."""
        settings: dict[str, Scalar] = {
            "dataset": "image-folder",
            "data-dir": self.data_dir,
            "output-dir": output_dir,
            "num-server-rounds": self.rounds,
            "num-clients": CLIENTS,
            "fraction-train": 0.1,
            "local-epochs": self.training.local_epochs,
            "batch-size": self.training.batch_size,
            "learning-rate": self.training.learning_rate,
            "momentum": self.training.momentum,
            "model": "cnn",
            "strategy": strategy,
            "eval-every": self.rounds,
            "device": "cpu",
        }
        return RunConfig.from_run_config(RunConfig.defaults() | settings)

    def sampled(self, server_round: int) -> list[int]:
        """Return the clients that a strategy of this package draws in a round."""
        nodes = [ClientNode(i, i) for i in range(CLIENTS)]
        generator = numpy_generator("sample-clients", 0, server_round)
        sampled = sample_clients(nodes, CLIENTS // 10, generator)
        return [node.partition_id for node in sampled]

    def steps(self, server_round: int) -> int:
        """Return the number of local steps of a round, over all of its clients."""
        batches = 0
        for client in self.sampled(server_round):
            batches += math.ceil(len(self.partitions[client]) / self.training.batch_size)
        return self.training.local_epochs * batches

    def examples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's normalised images ``[n, 3, 32, 32]`` and labels ``[n]``."""
        data = self.dataset
        chosen = self.partitions[client].numpy()
        pixels = to_pixels(data.train.images[chosen], data.max_value)
        labels = torch.from_numpy(data.train.labels[chosen])
        return Normalization(data.mean, data.std)(pixels), labels


def run_ours(strategy: str, work: Workload) -> list[float]:
    """Simulate a run in this process; return the seconds of each round."""
    from client_app import app
    from fedif_flower.runtime.simulation import simulate

    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        config = work.config(strategy, folder)
        simulate(config, app, on_row=lambda _: ends.append(time.perf_counter()))
    return [end - start for start, end in itertools.pairwise(ends)]


def run_floor(work: Workload) -> list[float]:
    """Train each round's clients in a pool of processes; return the seconds of each round.

    A free process takes the next client. The time to prepare the data does not count.
    """
    seconds = []
    with processes.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for server_round in range(1, work.rounds + 1):
            jobs = []
            for client in work.sampled(server_round):
                inputs, labels = work.examples(client)
                inputs.share_memory_()  # type: ignore[no-untyped-call]
                jobs.append((inputs, labels, work.training))
            started = time.perf_counter()
            pool.starmap(_train, jobs, chunksize=1)
            seconds.append(time.perf_counter() - started)
    return seconds


def _train(inputs: Tensor, labels: Tensor, config: TrainingConfig) -> float:
    torch.set_num_threads(1)
    return train_local(_model, inputs, labels, config, torch.Generator().manual_seed(0))


def main(
    data_dir: Annotated[str, typer.Option(help="image folder of CIFAR-10")],
    full: Annotated[bool, typer.Option(help="the paper's E = 5, three repetitions")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
    only: Annotated[str, typer.Option(help="run this contender alone, print JSON")] = "",
) -> None:
    """Print the table."""
    work = Workload(data_dir, rounds=5, epochs=1)
    repetitions = 1
    if full:
        work = Workload(data_dir, rounds=8, epochs=5)
        repetitions = 3
    if only:
        print(json.dumps(step_milliseconds(only, work)))
        return
    options = ["--data-dir", data_dir]
    if full:
        options.append("--full")
    contenders = (FLOOR, *AIMS)
    step_ms: dict[str, list[float]] = {name: [] for name in contenders}
    # They take turns, so that other work on the machine slows all of them.
    for _ in range(repetitions):
        for name in contenders:
            step_ms[name] += alone("throughput", *options, "--only", name)
    figures = figures_of(step_ms, steps=statistics.fmean(map(work.steps, work.timed_rounds)))
    report("Simulation throughput: CIFAR-10 CNN", "rounds", figures, write=write, full=full)


def step_milliseconds(contender: str, work: Workload) -> list[float]:
    """Run a contender; return the milliseconds of a local step in each round that counts."""
    seconds = run_floor(work) if contender == FLOOR else run_ours(contender, work)
    return [1e3 * seconds[t - 1] / work.steps(t) for t in work.timed_rounds]


def figures_of(step_ms: Mapping[str, Sequence[float]], steps: float) -> list[Figure]:
    """Return the seconds of a round with ``steps`` local steps, beside those of bare processes."""
    peer = 1e-3 * steps * statistics.median(step_ms[FLOOR])
    figures = []
    for name, aim in AIMS.items():
        seconds = [1e-3 * steps * ms for ms in step_ms[name]]
        ours = statistics.median(seconds)
        spread = f"{min(seconds):.2f} to {max(seconds):.2f} s"
        title = f"round of {steps:.0f} steps: {name} / {FLOOR}"
        figures.append(Figure(title, ours, peer, "s", ours / peer, aim, spread))
    return figures


if __name__ == "__main__":
    run_benchmark(main)
