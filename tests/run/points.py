"""Tasks of points in the plane, and a run about them in this process."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from fedif_consortium.parts import client_parts, run_parts
from fedif_flower.runtime.local_run import run_locally
from fedif_flower.tasks.task import Metric, Task

SLOPE = torch.tensor([[2.0], [-1.0]])


def line(seed: int, count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of y = 2 a - b."""
    inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs @ SLOPE


def absolute_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).abs().mean()


def regression(**changes) -> Task:
    own = {
        "name": "line",
        "model": lambda: nn.Linear(2, 1),
        "client_data": lambda site: line(site.partition_id),
        "validation_data": lambda site: line(100),
        "test_data": lambda site: line(101),
        "loss": functional.mse_loss,
        "metrics": [Metric("mean absolute error", absolute_error, higher_is_better=False)],
    }
    return Task(**{**own, **changes})


def classes(**changes) -> Task:
    def labelled(seed: int):
        inputs, targets = line(seed, 60)
        return inputs, (targets[:, 0] > 0).long()

    own = {
        "name": "sides",
        "model": lambda: nn.Linear(2, 2),
        "client_data": lambda site: labelled(site.partition_id),
        "validation_data": lambda site: labelled(100),
        "test_data": lambda site: labelled(101),
    }
    return Task(**{**own, **changes})


def run(tmp_path: Path, task: Task, **settings) -> Path:
    usual = {"num_clients": 4, "fraction_train": 1.0, "num_server_rounds": 3}
    usual |= {"learning_rate": 0.05, "device": "cpu"}
    parts = {"parts": run_parts(), "client_parts": client_parts()}
    return run_locally(task, tmp_path, **parts, **(usual | settings))
