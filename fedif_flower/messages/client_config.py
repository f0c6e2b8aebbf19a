"""The settings that the server sends to clients with every message."""

from __future__ import annotations

import json
from typing import Self

from fedif_flower.attacks import AttackConfig
from fedif_flower.local_methods import LocalMethodConfig
from fedif_flower.settings import setting
from fedif_flower.tasks.config import TaskConfig, TrainingConfig

DEVICES = r"^(auto|cpu|cuda(:\d+)?|mps)$"


class ClientConfig(TaskConfig, TrainingConfig, AttackConfig, LocalMethodConfig):
    """The settings of a run that clients get: task, training, attack, local method and seed."""

    num_clients: int = setting(
        100,
        "clients K; the run begins when K nodes are online",
        ge=1,
        auto="[the nodes that there are](#how-many-clients); 100 in `make run`, `fedif`, sweeps",
    )
    seed: int = setting(
        0,
        "seed of partitions, split, model, attacks and batches; in simulations also of what the "
        "server draws",
        ge=0,
    )
    device: str = setting(
        "auto",
        "device of server and clients; one that is not there is an error",
        pattern=DEVICES,
        allowed="auto, cpu, cuda, cuda:N, mps",
    )
    threads_per_client: int = setting(
        1, "torch threads of a client; changes speed, and bits only by rounding", ge=1
    )

    def to_json(self) -> str:
        """Return the settings as a JSON object, for a message or a file."""
        return json.dumps(self.to_mapping())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote."""
        return cls(**json.loads(text))
