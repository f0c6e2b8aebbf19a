"""Federations of a named strategy with the real clients, on digits, without their pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message

from client_app import app as client_app
from fedif_flower.messages.arrays import pack_array
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from tests.strategies.hostile import round_of


def config(output_dir: Path, strategy: str, **overrides) -> RunConfig:
    settings = {
        "strategy": strategy,
        "num-clients": 10,
        "fraction-train": 0.5,
        "num-server-rounds": 2,
        "local-epochs": 1,
        "attack": "label-noise",
        "output-dir": str(output_dir),
        "device": "cpu",
    }
    return RunConfig.from_run_config(RunConfig.defaults() | settings | overrides)


def run(chosen: RunConfig, clients=client_app) -> tuple[dict, dict[str, torch.Tensor], list[dict]]:
    """Run a federation; return its summary, its model and the lines of ``clients.csv``."""
    with patch("fedif_flower.run.plots.save_figure"):  # Pictures take four fifths of the time.
        run_dir = run_federation(LocalGrid(clients, chosen.num_clients), chosen)
    summary = json.loads((run_dir / "summary.json").read_text())
    model = torch.load(run_dir / "model.pt", weights_only=True)
    return summary, model, read_rows(run_dir / "clients.csv")


class Spoiler:
    """The real clients; in the first rounds, some send other arrays than they trained.

    ``spoil`` takes a partition and an array that it trained, and returns what is sent; ``rounds``
    says for how many rounds.
    """

    def __init__(self, spoil: Callable[[int, np.ndarray], np.ndarray], rounds: int = 100) -> None:
        self.spoil, self.rounds = spoil, rounds

    def __call__(self, message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        if message.metadata.message_type == "train" and round_of(message) <= self.rounds:
            partition_id = int(context.node_config["partition-id"])
            ((record, arrays),) = reply.content.array_records.items()
            reply.content[record] = ArrayRecord(
                {
                    name: pack_array(self.spoil(partition_id, array.numpy()))
                    for name, array in arrays.items()
                }
            )
        return reply


def full_of(**values: float) -> Callable[[int, np.ndarray], np.ndarray]:
    """Return what fills the arrays of some partitions, ``p1=9e14``, with a value."""

    def spoil(partition_id: int, trained: np.ndarray) -> np.ndarray:
        value = values.get(f"p{partition_id}")
        return trained if value is None else np.full_like(trained, value)

    return spoil
