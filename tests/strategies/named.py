"""Federations of a named strategy with the real clients, on digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message

from client_app import app as client_app
from fedif_flower.messages.arrays import pack_array
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from tests.run import resuming
from tests.run.resuming import run_config
from tests.server.hostile import round_of


def config(output_dir: Path, strategy: str, **overrides) -> RunConfig:
    usual = {"num-clients": 10, "num-server-rounds": 2, "checkpoint-every": 0, "run-name": "auto"}
    return run_config(output_dir, strategy=strategy, **{**usual, **overrides})


def run(chosen: RunConfig, clients=client_app) -> tuple[dict, dict[str, torch.Tensor], list[dict]]:
    """Run a federation; return its summary, its model and the lines of ``clients.csv``."""
    folder = RunFolder(resuming.run(chosen, LocalGrid(clients, chosen.num_clients)))
    model = torch.load(folder.model, weights_only=True)
    return folder.summary.read(), model, folder.clients.read()


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
