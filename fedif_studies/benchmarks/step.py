"""Milliseconds of a client's training step: PyTorch's plain loop, ours, and the floor of both.

The floor is the time of the layers one by one, forward and backward, each with its inputs in the
cache. What a step takes beyond the floor is the overhead of its loop. All three take turns, so that
other work on the machine slows each of them, and the median counts, in CPU time of one thread.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.client.training import train_local
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.models import Dropout, build_model
from fedif_flower.tasks.modules import image_format, to_memory_format
from fedif_studies.benchmarks.common import MODELS, Figure, report, run_benchmark

CLASSES = 10
STEPS = 20
# The paper's settings, but for its five epochs.
CONFIG = TrainingConfig(local_epochs=1, batch_size=16, learning_rate=0.001, momentum=0.9)


@dataclass(frozen=True)
class Work:
    """A model, and the images and labels of ``STEPS`` batches."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor

    @classmethod
    def of(cls, model_name: str, shape: tuple[int, int, int]) -> Work:
        """Return a new model by its name, with random images of this shape."""
        generator = torch.Generator().manual_seed(0)
        count = STEPS * CONFIG.batch_size
        inputs = torch.randn(count, *shape, generator=generator)
        labels = torch.randint(CLASSES, (count,), generator=generator)
        return cls(build_model(model_name, shape, CLASSES, seed=0), inputs, labels)


def run_ours(work: Work) -> None:
    """Train for ``STEPS`` steps as a client of this package does."""
    generator = torch.Generator().manual_seed(0)
    train_local(work.model, work.inputs, work.labels, CONFIG, generator)


def with_torch_s_dropout(model: nn.Module) -> nn.Module:
    """Return a copy of a model with PyTorch's dropout in place of this package's faster one."""
    plain = copy.deepcopy(model)
    for name, layer in list(plain.named_modules()):
        if isinstance(layer, Dropout):
            plain.set_submodule(name, nn.Dropout(layer.p))
    return plain


def run_plain(work: Work) -> None:
    """Train for ``STEPS`` steps as PyTorch's tutorials do, on tensors in memory."""
    model = work.model.train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=CONFIG.learning_rate, momentum=CONFIG.momentum
    )
    for chosen in torch.split(torch.randperm(len(work.labels)), CONFIG.batch_size):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(work.inputs[chosen]), work.labels[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def layer_calls(work: Work) -> list[Callable[[], object]]:
    """Return a function for each layer, and for the loss, that goes forward and backward once."""
    model = work.model.train()
    images = work.inputs[: CONFIG.batch_size]
    values = to_memory_format(images, image_format(model, images))
    calls = []
    for layer in model.modules():
        if not list(layer.children()):
            calls.append(_there_and_back(layer, values))
            # Training needs gradients for the inputs of each later layer, but not for the images.
            values = layer(values).detach().requires_grad_()
    labels = work.labels[: CONFIG.batch_size]
    calls.append(_there_and_back(lambda logits: functional.cross_entropy(logits, labels), values))
    return calls


def _there_and_back(layer: Callable[[Tensor], Tensor], values: Tensor) -> Callable[[], object]:
    """Return a function that passes values through a layer, and gradients back if it needs them."""
    leaves = [values]
    if isinstance(layer, nn.Module):
        leaves = [*layer.parameters(), values]
    differentiated = [leaf for leaf in leaves if leaf.requires_grad]
    gradient = torch.ones_like(layer(values))

    def forward() -> object:
        return layer(values)

    def forward_and_backward() -> object:
        return torch.autograd.grad(layer(values), differentiated, gradient)

    if not differentiated:  # A first layer without parameters: no gradient is needed.
        return forward
    return forward_and_backward


def milliseconds(call: Callable[[], object]) -> float:
    """Return the CPU time, in milliseconds, that a call takes in this thread."""
    began = time.thread_time()
    call()
    return 1e3 * (time.thread_time() - began)


def _sample(call: Callable[[], object]) -> list[float]:
    """Return the milliseconds of each of ``STEPS`` calls."""
    return [milliseconds(call) for _ in range(STEPS)]


def measure(name: str, work: Work, times: int) -> list[Figure]:
    """Return the median step of our loop beside that of the plain loop, and beside the floor."""
    plain_work = replace(work, model=with_torch_s_dropout(work.model))
    calls = layer_calls(work)
    ours: list[float] = []
    plain: list[float] = []
    by_layer: list[list[float]] = [[] for _ in calls]
    for turn in range(times + 1):
        ours_ms = milliseconds(lambda: run_ours(work)) / STEPS
        plain_ms = milliseconds(lambda: run_plain(plain_work)) / STEPS
        layers_ms = [_sample(call) for call in calls]
        if turn == 0:  # The first turn warms up.
            continue
        ours.append(ours_ms)
        plain.append(plain_ms)
        for layer, samples in zip(by_layer, layers_ms, strict=True):
            layer += samples
    step = statistics.median(ours)
    peer = statistics.median(plain)
    floor = sum(map(statistics.median, by_layer))
    spread = f"{min(ours):.2f} to {max(ours):.2f} ms"
    to_peer = f"{name}: speed over the plain loop"
    to_floor = f"{name}: beside its layers alone"
    return [
        Figure(to_peer, step, peer, "CPU ms", peer / step, ">= 1.5", spread),
        Figure(to_floor, step, floor, "CPU ms", step / floor, "", spread),
    ]


def main(
    full: Annotated[bool, typer.Option(help="more repetitions")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    figures: list[Figure] = []
    for name, (model_name, shape) in MODELS.items():
        figures += measure(name, Work.of(model_name, shape), times=15 if full else 5)
    report("A training step, one thread", "step", figures, write=write, full=full)


if __name__ == "__main__":
    run_benchmark(main)
