"""Masked rounds of members that train on noise, some of which spoil what they send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp.typing import Mod
from torch import nn

from fedif_consortium.masking.keeper import TrialKeeper
from fedif_consortium.masking.part import Masking
from fedif_consortium.parts import client_parts
from fedif_flower import Validation
from fedif_flower.client.app import task_app
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import instructions
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.record import Round
from fedif_flower.strategies import Setup
from fedif_flower.tasks.task import Task

MEMBERS = 6
FEATURES, CLASSES = 100, 20  # d = 2,020: lengths are known to 31 %.
_GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(60, FEATURES, generator=_GENERATOR)
TARGETS = torch.arange(60) % CLASSES
NOBODY: Mapping[int, Mod] = MappingProxyType({})


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def validation() -> Validation:
    return Validation(model(), INPUTS, TARGETS, device="cpu")


def train(model, data, training) -> float:
    """Add noise as large as the learning rate."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += training.learning_rate * torch.randn_like(parameter)
    return 1.0


TASK = Task(
    name="noise",
    model=model,
    client_data=lambda site: (INPUTS[: site.partition_id + 1], TARGETS[: site.partition_id + 1]),
    validation_data=lambda site: (INPUTS, TARGETS),
    test_data=lambda site: (INPUTS, TARGETS),
    num_classes=CLASSES,
    train=train,
)


class Faulty:
    """A keeper that does one thing otherwise than the one behind it."""

    def __init__(self, keeper: Any, **faults: Callable[..., Any]) -> None:
        self.keeper, self.faults = keeper, faults
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        true = getattr(self.keeper, name)
        self.asked.append(name)
        return (lambda *args: self.faults[name](true, *args)) if name in self.faults else true


def play(
    strategy_of: Callable[..., ScreenedStrategy],
    spoilt: Mapping[int, Mod] = NOBODY,
    *,
    scale: float = 0.02,
    is_masked: bool = True,
    rounds: int = 3,
    members: int = MEMBERS,
    setup: Setup | None = None,
    faults: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    **base: Any,
) -> tuple[ScreenedStrategy, torch.Tensor, list[Round]]:
    """Run rounds; return the strategy, the model's vector [d] and the reports."""

    def sent(message: Message, context: Context, answer: Any) -> Message:
        mod = spoilt.get(int(context.node_config["partition-id"]))
        return mod(message, context, answer) if mod else answer(message, context)

    setup = setup or Setup(device="cpu", max_failed_rounds=10)
    if is_masked:
        setup = replace(setup, intake=Masking(Faulty(TrialKeeper(), **faults)))
    strategy = strategy_of(setup=setup, fraction_evaluate=0.0, **base)
    grid = LocalGrid(task_app(TASK, [sent], client_parts()), members)
    config = ClientConfig(num_clients=members, learning_rate=scale, device="cpu")
    told = instructions(config, TASK, run="r")
    strategy.start(grid, model_arrays(model()), num_rounds=rounds, train_config=told)
    return strategy, strategy.model.vectors.params, strategy.history.rounds
