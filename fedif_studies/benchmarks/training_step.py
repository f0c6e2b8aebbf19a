"""Milliseconds of a client's training step: the plain PyTorch loop beside ``train_local``.

The same steps in the same order, in turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.client.training import train_local
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.models import build_model
from fedif_studies.benchmarks.common import Figure, report
from fedif_studies.benchmarks.stock_app import Net

Train = Callable[[nn.Module, Tensor, Tensor, TrainingConfig, torch.Generator], object]
Pair = tuple[Tensor, Tensor]


class PlainFashionCNN(nn.Sequential):
    """The Fashion-MNIST CNN, written the usual way."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
        )


@dataclass(frozen=True)
class Case:
    """A model both ways; ``aim`` is that of the speed-up on a CPU."""

    name: str
    key: str
    shape: tuple[int, int, int]
    plain: Callable[[], nn.Module]
    examples: int
    aim: str


CASES = (
    Case("CIFAR-10 CNN", "cnn", (3, 32, 32), Net, 320, ">= 1.5"),
    Case("Fashion-MNIST CNN", "cnn-batch-norm", (1, 28, 28), PlainFashionCNN, 320, ">= 1.5"),
    Case(
        *("ResNet-18", "resnet18", (3, 32, 32)),
        *(lambda: build_model("resnet18", (3, 32, 32), 10, seed=0), 48, ""),
    ),
)


def plain_loop(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    config: TrainingConfig,
    generator: torch.Generator,
) -> None:
    """Train as every tutorial does, on tensors in memory."""
    torch.randint(2**62, (), generator=generator)  # As train_local, to visit in the same order.
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.learning_rate, momentum=config.momentum
    )
    model.train()
    for _ in range(config.local_epochs):
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
        for chosen in torch.split(order, config.batch_size):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs[chosen]), labels[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def step_ms(train: Train, model: nn.Module, data: Pair, config: TrainingConfig) -> float:
    """Return the milliseconds per step of one client's training."""
    inputs, labels = data
    steps = config.local_epochs * len(labels) / config.batch_size
    started = time.perf_counter()
    train(model, inputs, labels, config, torch.Generator().manual_seed(0))
    return 1e3 * (time.perf_counter() - started) / steps


def measure(case: Case, times: int) -> Figure:
    """Time the plain loop and ours in turns."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(case.examples, *case.shape, generator=generator)
    labels = torch.randint(10, (case.examples,), generator=generator)
    config = TrainingConfig(local_epochs=1)
    variants: list[tuple[Train, nn.Module]] = [
        (plain_loop, case.plain()),
        (train_local, build_model(case.key, case.shape, 10, seed=0)),
    ]
    seconds: list[list[float]] = [[] for _ in variants]
    for _ in range(times + 1):
        for found, (train, model) in zip(seconds, variants, strict=True):
            found.append(step_ms(train, model, (inputs, labels), config))
    plain, fast = (statistics.median(found[1:]) for found in seconds)
    spread = f"{min(seconds[1][1:]):.2f} to {max(seconds[1][1:]):.2f} ms"
    name = f"{case.name}: speed over the plain loop"
    return Figure(name, fast, plain, "ms", plain / fast, case.aim, spread)


def main(
    full: Annotated[bool, typer.Option(help="more repetitions")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    figures = [measure(case, 15 if full else 5) for case in CASES]
    report("The training step, one thread", "training-step", figures, write=write, full=full)


if __name__ == "__main__":
    typer.run(main)
