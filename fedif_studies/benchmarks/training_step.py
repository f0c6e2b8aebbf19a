"""Milliseconds of a client's training step: the plain PyTorch loop beside ``train_local``.

The same steps from the same weights in the same order, in turns; then what ``precision = "bf16"``
gains, and what all three reach on held-out images after the same training (several seeds).
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
from fedif_flower.tasks.data import Normalization, load_dataset, to_pixels
from fedif_flower.tasks.models import build_model
from fedif_studies.benchmarks.common import Figure, report
from fedif_studies.benchmarks.replies import synthetic_images
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


def measure(case: Case, times: int) -> list[Figure]:
    """Time the plain loop, ours and ours in bf16 in turns."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(case.examples, *case.shape, generator=generator)
    labels = torch.randint(10, (case.examples,), generator=generator)
    config = TrainingConfig(local_epochs=1)
    ours = build_model(case.key, case.shape, 10, seed=0)
    variants: list[tuple[Train, nn.Module, TrainingConfig]] = [
        (plain_loop, case.plain(), config),
        (train_local, ours, config),
        (train_local, ours, config.replace(precision="bf16")),
    ]
    seconds: list[list[float]] = [[] for _ in variants]
    for _ in range(times + 1):
        for found, (train, model, settings) in zip(seconds, variants, strict=True):
            found.append(step_ms(train, model, (inputs, labels), settings))
    plain, fast, half = (statistics.median(found[1:]) for found in seconds)
    spread = f"{min(seconds[1][1:]):.2f} to {max(seconds[1][1:]):.2f} ms"
    half_spread = f"{min(seconds[2][1:]):.2f} to {max(seconds[2][1:]):.2f} ms"
    return [
        Figure(
            f"{case.name}: speed over the plain loop",
            fast,
            plain,
            "ms",
            plain / fast,
            case.aim,
            spread,
        ),
        Figure(f"{case.name}: bf16 over float32", half, fast, "ms", fast / half, "", half_spread),
    ]


@torch.inference_mode()
def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Return the share of right answers, in [0, 1]."""
    model.eval()
    right = [
        (model(some).argmax(1) == answers).sum()
        for some, answers in zip(torch.split(inputs, 500), torch.split(labels, 500), strict=True)
    ]
    return int(sum(right)) / len(labels)


def accuracies(data: tuple[Pair, Pair], epochs: int, seeds: int) -> list[Figure]:
    """Train the CIFAR-10 CNN in all three ways, from the same weights; return test accuracies."""
    (inputs, labels), held_out = data
    found: dict[str, list[float]] = {"plain": [], "ours": [], "ours, bf16": []}
    for seed in range(seeds):
        config = TrainingConfig(local_epochs=epochs, learning_rate=0.01)
        for name, values in found.items():
            model = build_model("cnn", (3, 32, 32), 10, seed=seed)
            if name == "plain":
                params = nn.utils.parameters_to_vector(model.parameters()).detach()
                model = Net()
                nn.utils.vector_to_parameters(params.clone(), model.parameters())
            torch.manual_seed(seed)  # Dropout's
            train: Train = plain_loop if name == "plain" else train_local
            settings = config.replace(precision="bf16") if "bf16" in name else config
            train(model, inputs, labels, settings, torch.Generator().manual_seed(seed))
            values.append(100 * accuracy(model, *held_out))
    plain = statistics.fmean(found.pop("plain"))
    return [
        Figure(
            *(f"CIFAR-10 CNN, test accuracy: {name} - plain", statistics.fmean(values), plain, "%"),
            *(statistics.fmean(values) - plain, "~ 0", f"{min(values):.1f} to {max(values):.1f} %"),
        )
        for name, values in found.items()
    ]


def images(data_dir: str, train: int, test: int) -> tuple[Pair, Pair]:
    """Return so many training and test images, real or made up."""
    if not data_dir:
        made = synthetic_images(train + test, (3, 32, 32))
        return made.tensors(slice(train)), made.tensors(slice(train, None))
    dataset = load_dataset("image-folder", data_dir)
    normalize = Normalization(dataset.mean, dataset.std)

    def some(split: str, count: int) -> Pair:
        source = getattr(dataset, split)
        chosen = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:count]
        pixels = to_pixels(source.images[chosen.sort().values.numpy()], dataset.max_value)
        return normalize(pixels), torch.from_numpy(source.labels[chosen.sort().values.numpy()])

    return some("train", train), some("test", test)


def main(
    data_dir: Annotated[str, typer.Option(help="image folder of CIFAR-10; else made up")] = "",
    full: Annotated[bool, typer.Option(help="more repetitions, longer training")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    figures = [figure for case in CASES for figure in measure(case, 15 if full else 5)]
    size, epochs, seeds = (10_000, 5, 3) if full else (1_000, 2, 1)
    figures += accuracies(images(data_dir, size, 4_000 if full else 500), epochs, seeds)
    report("The training step, one thread", "training-step", figures, write=write, full=full)


if __name__ == "__main__":
    typer.run(main)
