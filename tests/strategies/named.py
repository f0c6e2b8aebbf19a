"""Federations of a named strategy with the real clients, on digits, without their pictures."""

from __future__ import annotations

import json
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

NUM_CLIENTS = 10


def config(output_dir: Path, strategy: str, **overrides) -> RunConfig:
    settings = {
        "strategy": strategy,
        "num-clients": NUM_CLIENTS,
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
        run_dir = run_federation(LocalGrid(clients, NUM_CLIENTS), chosen)
    summary = json.loads((run_dir / "summary.json").read_text())
    model = torch.load(run_dir / "model.pt", weights_only=True)
    return summary, model, read_rows(run_dir / "clients.csv")


class Spoiler:
    """The real clients; some send a model full of a value, each in the first rounds alone.

    ``values`` has the value by partition, and ``rounds`` for how many rounds it is sent.
    """

    def __init__(self, values: dict[int, float], rounds: int = 100) -> None:
        self.values, self.rounds = values, rounds

    def __call__(self, message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        partition_id = int(context.node_config["partition-id"])
        if partition_id in self.values and self._spoils(message):
            (name,) = reply.content.array_records
            reply.content[name] = ArrayRecord(
                {
                    key: pack_array(np.full_like(array.numpy(), self.values[partition_id]))
                    for key, array in reply.content.array_records[name].items()
                }
            )
        return reply

    def _spoils(self, message: Message) -> bool:
        if message.metadata.message_type != "train":
            return False
        return int(message.content.config_records["config"]["server-round"]) <= self.rounds
