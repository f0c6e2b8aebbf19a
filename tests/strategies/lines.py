"""Clients and a model so small that whole rounds can be worked out by hand."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies.base import ScreenedStrategy
from fedif_flower.strategies.reports import RoundReport
from fedif_flower.valuation import Validation

STEPS = [[4.5], [2.5], [-3.7]]
# Shapley values of STEPS: u(a) = 1, u(b) = 1/2, u(ab) = 3/4, u(abc) = 1/4, otherwise 0.
SHAPLEY = [11 / 24, 5 / 24, -10 / 24]


class Threshold(nn.Module):
    """Says class 1 where weight * x > 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(inputs), self.weight * inputs], dim=1)


def threshold_validation() -> Validation:
    """Right about the k-th example once the weight exceeds k = 1, 2, 3, 4."""
    inputs = torch.tensor([[1.0], [1 / 2], [1 / 3], [1 / 4]])
    return Validation(Threshold(), inputs, torch.ones(4, dtype=torch.int64), device="cpu")


def point() -> nn.Module:
    """Two parameters, both 0."""
    line = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(line.weight)
    return line


class Movers:
    """A ClientApp: partition p adds ``steps[p]``, flat [d], and claims ``examples[p]``."""

    def __init__(self, steps: list[list[float]], examples: list[int] | None = None) -> None:
        self.steps = steps
        self.examples = examples or [10] * len(steps)

    def __call__(self, message: Message, context: Context) -> Message:
        partition_id = int(context.node_config["partition-id"])
        if message.metadata.message_type == "query":
            node = ConfigRecord({"partition-id": partition_id, "attack": ""})
            return Message(RecordDict({"node": node}), reply_to=message)
        step = np.asarray(self.steps[partition_id], dtype=np.float32)
        arrays, start = {}, 0
        for name, array in message.content.array_records["arrays"].items():
            values = array.numpy()
            part = step[start : start + values.size].reshape(values.shape)
            arrays[name] = pack_array(values + part)
            start += values.size
        metrics = MetricRecord({"num-examples": self.examples[partition_id]})
        return Message(
            RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message
        )


def play(
    strategy: ScreenedStrategy, model: nn.Module, movers: Movers, rounds: int = 1
) -> tuple[Tensor, list[RoundReport]]:
    """Run rounds with all clients; return the new parameters ``[d]`` and the reports."""
    grid, before = LocalGrid(movers, len(movers.steps)), len(strategy.history.rounds)
    result = strategy.start(grid, model_arrays(model), num_rounds=rounds)
    arrays = [torch.from_numpy(array.numpy()).flatten() for array in result.arrays.values()]
    return torch.cat(arrays), strategy.history.rounds[before:]


def column(report: RoundReport, name: str) -> list[float]:
    """Return one figure of each client of a round."""
    return [getattr(client, name) for client in report.clients]
