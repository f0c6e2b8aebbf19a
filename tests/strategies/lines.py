"""Models so small that whole rounds can be worked out by hand; a strategy of every kind."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor, nn

from fedif_flower import FedAvg, Krum, PathAttribution, strategies
from fedif_flower.attribution.records import RoundAttribution
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.record import Round
from fedif_flower.server.run import Callback
from fedif_flower.strategies import RootTraining, ScoredStrategy, ScreenedStrategy, Setup
from fedif_flower.valuation import InfluenceValuation, Validation
from tests.server.hostile import Clients, reply_of
from tests.tolerance import rounding

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}
PLAIN = BASE | {"stages": ()}  # Without bounds on lengths and on the loss.
ROUNDING = rounding(torch.float32)
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


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


def validation(kind=Validation, loss_fn=squared, target=(4.0, 2.0)) -> Validation:
    """Loss (x - 4)^2 / 2 + (y - 2)^2 / 2 of two parameters (x, y): 10 at the start."""
    targets = torch.tensor(target)[:, None]
    return kind(point(), torch.eye(2), targets, loss_fn=loss_fn, device="cpu")


def point(size: int = 2) -> nn.Module:
    """So many parameters, all 0, that are multiplied by the inputs."""
    line = nn.Linear(size, 1, bias=False)
    nn.init.zeros_(line.weight)
    return line


def bowl() -> Validation:
    """Half the squared distance of a point from (1, 0)."""
    return validation(target=(1.0, 0.0))


class Shifted(nn.Linear):
    """A number times the input, plus a buffer that clients send as well."""

    def __init__(self) -> None:
        super().__init__(1, 1, bias=False)
        nn.init.zeros_(self.weight)
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.shift


class Movers(Clients):
    """A ClientApp: partition p adds ``steps[p]``, flat [d], and claims ``examples[p]``."""

    def __init__(self, steps: list[list[float]], examples: list[int] | None = None) -> None:
        super().__init__()
        self.steps = steps
        self.examples = examples or [10] * len(steps)

    def train(self, message: Message, partition_id: int) -> Message:
        step = np.asarray(self.steps[partition_id], dtype=np.float32)
        arrays, start = {}, 0
        for name, array in message.content.array_records["arrays"].items():
            values = array.numpy()
            part = step[start : start + values.size].reshape(values.shape)
            arrays[name] = pack_array(values + part)
            start += values.size
        return reply_of(message, arrays, {"num-examples": self.examples[partition_id]})


def play(
    strategy: ScreenedStrategy, model: nn.Module, clients: Clients, rounds: int = 1
) -> tuple[Tensor, list[Round]]:
    """Run rounds with all clients; return the new parameters ``[d]`` and the reports."""
    grid = LocalGrid(clients, len(getattr(clients, "steps", [0, 0, 0])))
    before = len(strategy.history.rounds)
    result = strategy.start(grid, model_arrays(model), num_rounds=rounds)
    arrays = [torch.from_numpy(array.numpy()).flatten() for array in result.arrays.values()]
    return torch.cat(arrays), strategy.history.rounds[before:]


def column(report: Round, name: str) -> list[float]:
    """Return one figure of each client of a round."""
    return [getattr(client, name) for client in report.clients]


def attributed(
    strategy_of,
    clients: Clients,
    rounds: int = 1,
    rule: str = "trapezoid",
    *,
    held_out: Validation | None = None,
    model: nn.Module | None = None,
    beside: tuple[Callback, ...] = (),
    setup: dict | None = None,
    **options,
) -> PathAttribution:
    """Run rounds of ``strategy_of(held_out, **base)``; return what was attributed."""
    held_out = held_out or validation()
    callback = PathAttribution(held_out, rule, **options)
    names = {"trainable_keys": held_out.parameter_names} | (setup or {})
    base = BASE | {"setup": Setup(device="cpu", **names)}
    strategy = strategy_of(held_out, callbacks=[callback, *beside], **base)
    play(strategy, model or point(), clients, rounds)
    return callback


def fedavg(held_out: Validation, **base) -> FedAvg:
    return FedAvg(**base)


def values(found: RoundAttribution) -> list[float]:
    return [client.contribution for client in found.clients]


# -- a strategy of every kind

PUBLIC = [value for value in vars(strategies).values() if isinstance(value, type)]
STRATEGIES = [kind for kind in PUBLIC if issubclass(kind, ScreenedStrategy)]
KINDS = [kind for kind in STRATEGIES if kind is not ScreenedStrategy]  # Those that can weigh.


def needed(kind: type, model: nn.Module, data: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Return what a constructor cannot do without."""
    validation = Validation(model, *data, device="cpu")
    known = {
        "validation": InfluenceValuation(validation) if kind is ScoredStrategy else validation,
        "model": model,
        "root": RootTraining(model, *data),
        "rule": Krum(),
        "root_data": data,
        "ratio": 0.5,
        "malicious_fraction": 0.3,
    }
    return {name: known[name] for name in inspect.signature(kind).parameters if name in known}


def built(
    kind: type[ScreenedStrategy], model: nn.Module, data: tuple[Tensor, Tensor], **settings: Any
) -> ScreenedStrategy:
    """Return a strategy with what it cannot do without, where ``settings`` does not have it."""
    return kind(**BASE | needed(kind, model, data) | settings)
