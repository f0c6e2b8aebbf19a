"""Small runs that can be killed after any round."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from client_app import app as client_app
from fedif_consortium.parts import server_parts
from fedif_flower.run.checkpoint import CheckpointFolder
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.run.part import RunContext
from fedif_flower.run.recorder import RunRecorder
from fedif_flower.run.writer import OnRow
from fedif_flower.runtime.local_grid import LocalGrid

CLIENTS = 6


class Killed(BaseException):
    """Nothing in the server catches it, as nothing catches kill -9."""


def run_config(output_dir: Path, **overrides) -> RunConfig:
    settings = {
        "num-clients": CLIENTS,
        "fraction-train": 0.5,
        "num-server-rounds": 5,
        "checkpoint-every": 2,
        "local-epochs": 1,
        "attack": "label-noise",
        "output-dir": str(output_dir),
        "run-name": "run",
        "device": "cpu",
    }
    overrides = {key.replace("_", "-"): value for key, value in overrides.items()}
    return RunConfig.from_run_config(RunConfig.defaults() | settings | overrides, server_parts())


def recorder_of(config: RunConfig, strategy=None, **settings) -> RunRecorder:
    """Return the recorder of a run whose task nobody evaluates; it goes on where that is set."""
    checkpoints = CheckpointFolder(config.run_dir / "checkpoints", settings)
    task = SimpleNamespace(metrics=(), remarks=())
    loaded = LoadedTask(config, task, None, None, [], None, None, "data")
    checkpoint = checkpoints.find(config.resume)
    run = RunContext(loaded, None, RunFolder(config.run_dir), "id", checkpoint)
    return RunRecorder(run, strategy, checkpoints)


def killed_at(number: int) -> OnRow:
    """Return what ends a run once a round's row is there."""

    def on_row(row) -> None:
        if row.round == number:
            raise Killed

    return on_row


def run(config: RunConfig, grid: LocalGrid | None = None, kill_at: int | None = None) -> Path:
    grid = grid or LocalGrid(client_app, CLIENTS)
    if kill_at is None:
        return run_federation(grid, config)
    with pytest.raises(Killed):
        run_federation(grid, config, killed_at(kill_at))
    assert not (config.run_dir / "summary.json").exists()
    return config.run_dir
