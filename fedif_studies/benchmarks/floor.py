"""The floor: the same SGD steps in as many bare processes, data in memory, nothing else."""

from __future__ import annotations

import os
import sys

import torch
import torch.multiprocessing as processes
from torch import Tensor

from fedif_flower.client.training import train_local
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.models import build_model
from fedif_studies.benchmarks.workload import (
    BATCH_SIZE,
    LEARNING_RATE,
    MOMENTUM,
    RoundClock,
    Workload,
)

_model = build_model("cnn", (3, 32, 32), 10, seed=0)


def train(inputs: Tensor, labels: Tensor, epochs: int) -> float:
    """Train this process's model on one client's examples."""
    torch.set_num_threads(1)
    config = TrainingConfig(
        local_epochs=epochs,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        momentum=MOMENTUM,
    )
    return train_local(_model, inputs, labels, config, torch.Generator().manual_seed(0))


def main(workload: Workload) -> None:
    """Train every round's clients, first come first served."""
    clock = RoundClock()
    with processes.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for server_round in range(1, workload.rounds + 1):
            clients = workload.sampled(server_round)
            jobs = []
            for client in clients:
                inputs, labels = workload.examples(client)
                inputs.share_memory_()  # type: ignore[no-untyped-call]
                jobs.append((inputs, labels, workload.epochs))
            clock.start()  # Preparing the data is not the floor's time.
            pool.starmap(train, jobs, chunksize=1)
            clock.end(sum(map(workload.steps_of, clients)))
    clock.print()


if __name__ == "__main__":
    main(Workload.from_json(sys.argv[-1]))
