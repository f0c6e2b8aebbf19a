"""Runs whose updates are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from client_app import app as client_app
from fedif_consortium.parts import run_parts
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.task import Task
from tests.consortium.statement import signed_runs as of

ROUNDS = 6


def config(output_dir: Path, **overrides) -> RunConfig:
    own = {"num_clients": 5, "fraction_train": 0.8, "num_server_rounds": ROUNDS}
    own |= {"attribution": "simpson", "updates.keep": True}
    return of.config(output_dir, **{**own, **overrides})


def run(config: RunConfig, grid: LocalGrid | None = None, **more) -> Path:
    grid = grid or LocalGrid(client_app, config.num_clients, **more)
    return run_federation(grid, config, parts=run_parts())


def small_task(name: str, model: Callable[[], nn.Module], dtype: torch.dtype) -> Task:
    """Which of three inputs is the largest."""

    def rows(seed: int, count: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
        return inputs.to(dtype), inputs[:, :3].argmax(dim=1)

    return Task(
        name=name,
        model=model,
        client_data=lambda site: rows(site.partition_id, 20),
        validation_data=lambda site: rows(98, 60),
        test_data=lambda site: rows(99, 60),
    )


class Steep(nn.Linear):
    """Answers beyond 200 are infinite, and have no finite loss."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        return outputs + (outputs.abs() - 100).clamp_min(0).exp() - 1
