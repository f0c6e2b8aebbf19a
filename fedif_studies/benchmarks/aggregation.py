"""Seconds from "replies are here" to "new arrays ready": FedIF beside Flower's own FedAvg.

Both aggregate the same messages of m = 10 clients. FedIF is the paper's: without the bound on the
validation loss, which would take one more pass over the images. It is timed twice. In a run, the
validation gradient is usually ready when replies come, since it is taken while clients train.
Without this overlap, FedIF is compared with FedAvg plus the fastest gradient in bare PyTorch over
the same images. Memory is what aggregation needs at its peak beyond the replies and the gradient.
"""

from __future__ import annotations

import copy
import ctypes
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from torch import Tensor, nn

from fedif_flower import FedIF, Validation
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import FIRST_NODE_ID, LocalGrid
from fedif_flower.strategies import Setup
from fedif_flower.tasks.models import build_model
from fedif_studies.benchmarks.common import (
    Figure,
    Timing,
    beside,
    memory_sizes,
    repeat,
    report,
    run_benchmark,
)

NUM_CLIENTS = 10


@dataclass(frozen=True)
class JudgedModel:
    """A model, and the validation set that FedIF takes its gradient on."""

    name: str
    model: nn.Module
    inputs: Tensor
    targets: Tensor


def judged_models(full: bool) -> list[JudgedModel]:
    """Return the models of the table, with random images, which cost as much as real ones."""
    generator = torch.Generator().manual_seed(0)

    def on_random_images(
        title: str, model: nn.Module, count: int, shape: tuple[int, ...]
    ) -> JudgedModel:
        inputs = torch.randn(count, *shape, generator=generator)
        targets = torch.randint(10, (count,), generator=generator)
        return JudgedModel(title, model, inputs, targets)

    def built_in(title: str, name: str, count: int, shape: tuple[int, int, int]) -> JudgedModel:
        return on_random_images(title, build_model(name, shape, 10, seed=0), count, shape)

    models = [
        built_in("Fashion-MNIST CNN, d = 29,034", "cnn-batch-norm", 2000, (1, 28, 28)),
        built_in("CIFAR-10 CNN, d = 1,059,306", "cnn", 2000, (3, 32, 32)),
    ]
    if full:
        wide = nn.Sequential(nn.Linear(1000, 9000), nn.ReLU(), nn.Linear(9000, 10100))
        models.append(built_in("ResNet-18, d = 11.2 M", "resnet18", 100, (3, 32, 32)))
        models.append(on_random_images("two layers, d = 100 M", wide, 100, (1000,)))
    return models


def replies_to(messages: list[Message], arrays: ArrayRecord) -> list[Message]:
    """Return a reply to each message: the model with a little noise."""
    generator = np.random.default_rng(0)
    replies = []
    for message in messages:
        trained = {}
        for name, array in arrays.items():
            values = array.numpy()
            if np.issubdtype(values.dtype, np.floating):
                noise = generator.standard_normal(values.shape, dtype=np.float32)
                values = values + np.float32(1e-3) * noise
            trained[name] = pack_array(values)
        content = RecordDict()
        content["arrays"] = ArrayRecord(trained)
        content["metrics"] = MetricRecord({"num-examples": 100})
        replies.append(Message(content, reply_to=message))
    return replies


def measure(judged: JudgedModel, times: int) -> list[Figure]:
    """Return FedIF's seconds beside FedAvg's, with its gradient ready and without; and memory."""
    arrays = model_arrays(judged.model)
    validation = Validation(judged.model, judged.inputs, judged.targets, device="cpu")
    grid = LocalGrid(lambda message, _: message, NUM_CLIENTS)
    ours = FedIF(validation, stages=(), fraction_evaluate=0.0, setup=Setup(device="cpu"))
    messages = list(ours.configure_train(1, arrays, ConfigRecord(), grid))
    # No grid sends these messages, so they get their ids here: a reply needs one to refer to.
    for index, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = str(index)
        assert message.metadata.dst_node_id == FIRST_NODE_ID + index
    replies = replies_to(messages, arrays)
    flower = FlowerFedAvg(fraction_evaluate=0.0)

    def begin() -> None:
        ours.configure_train(1, arrays, ConfigRecord(), grid)

    def begin_and_wait() -> None:
        begin()
        model = ours.model
        assert ours.validation is not None  # FedIF always has one.
        # begin() returns the computation that configure_train has started for the same model.
        ours.validation.gradients.begin(model.vectors.params, model.named_buffers).result()

    def aggregate() -> None:
        ours.aggregate_train(1, replies)

    begin_and_wait()
    before = _reset_peak_memory()
    aggregate()
    share = (memory_sizes()["VmHWM"] - before) / (NUM_CLIENTS * validation.num_params * 4)
    ready = repeat(aggregate, times, before=begin_and_wait)
    fedavg = repeat(lambda: flower.aggregate_train(1, replies), times).median
    gradient = best_bare_gradient(judged, max(times // 3, 1)).median
    without_overlap = repeat(aggregate, times, before=begin)
    name = judged.name
    return [
        beside(f"{name}: FedIF, gradient ready / Flower FedAvg", ready, fedavg, "<= 2 from 1 M on"),
        beside(
            f"{name}: FedIF, no overlap / gradient + Flower FedAvg",
            without_overlap,
            gradient + fedavg,
            "<= 1.1",
        ),
        Figure(f"{name}: extra memory / (m x d floats)", share, 1.0, "", share, "<= 1.5"),
    ]


def best_bare_gradient(judged: JudgedModel, times: int) -> Timing:
    """Return the seconds of the gradient in bare PyTorch, with the best of several chunk sizes."""
    model = copy.deepcopy(judged.model).eval()
    inputs = judged.inputs
    targets = judged.targets
    if inputs.dim() == 4:
        model = model.to(memory_format=torch.channels_last)
        inputs = inputs.to(memory_format=torch.channels_last)
    parameters = list(model.parameters())

    def gradient(chunk: int) -> None:
        total = [torch.zeros_like(p) for p in parameters]
        for x, y in zip(torch.split(inputs, chunk), torch.split(targets, chunk), strict=True):
            loss = nn.functional.cross_entropy(model(x), y, reduction="sum") / len(targets)
            torch._foreach_add_(total, torch.autograd.grad(loss, parameters))

    chunks = sorted({min(chunk, len(targets)) for chunk in (50, 100, 200, 1000)})
    timings = [repeat(partial(gradient, chunk), times) for chunk in chunks]
    return min(timings, key=lambda timing: timing.median)


def _reset_peak_memory() -> int:
    """Reset this process's peak memory to its resident bytes, and return these (Linux)."""
    # Give freed memory back to the system. Otherwise aggregation could use memory that the gradient
    # has freed, and the peak would not show it.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # 5 resets VmHWM, see proc(5).
    return memory_sizes()["VmRSS"]


def main(
    full: Annotated[bool, typer.Option(help="also 11 M and 100 M parameters")] = False,
    times: Annotated[int, typer.Option(help="repetitions")] = 9,
    threads: Annotated[int, typer.Option(help="torch threads")] = 1,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    torch.set_num_threads(threads)
    figures = []
    for judged in judged_models(full):
        figures += measure(judged, times)
    report("Aggregation, m = 10", "aggregation", figures, write=write, full=full)


if __name__ == "__main__":
    run_benchmark(main)
