"""Ways to evaluate coalition models on the CPU: chunks of images, layouts, batching, threads.

Each is measured against the way that the package takes, interleaved with it, per coalition.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.func import functional_call, vmap

from benchmarks.common import Figure, report
from benchmarks.replies import synthetic_images
from fedif_flower.tasks.batches import map_tensors
from fedif_flower.tasks.models import build_model
from fedif_flower.tasks.modules import trainable_names
from fedif_flower.valuation import Validation
from fedif_flower.valuation.coalitions import coalition_means, coalition_scores

NUM_CLIENTS = 10
CHUNKS = (25, 50, 200, 500, 2000)
CASES = {
    "CIFAR-10 CNN, 2,000 images": ("cnn", (3, 32, 32), 2000),
    "Fashion-MNIST CNN, 2,000 images": ("cnn-batch-norm", (1, 28, 28), 2000),
    "MLP, 72 digits": ("mlp", (1, 8, 8), 72),
}


@dataclass(frozen=True)
class Game:
    """Clients' models around a global one, and the images that judge them."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    client_params: Tensor  # [m, d]
    global_params: Tensor  # [d]
    masks: Tensor  # [c, m]

    def judge(self, batch_size: int | None = None) -> Validation:
        """Return what is asked, with images in chunks."""
        return Validation(
            self.model, self.inputs, self.targets, device="cpu", batch_size=batch_size
        )

    def ask(self, judge: Validation) -> Callable[[], object]:
        """Return a call that evaluates every coalition."""
        return lambda: coalition_scores(
            judge, self.client_params, self.masks, self.global_params, metric="accuracy"
        )


def build_game(model_name: str, shape: tuple[int, int, int], images: int, coalitions: int) -> Game:
    found = synthetic_images(images, shape)
    inputs, targets = found.tensors(slice(None))
    model = build_model(model_name, shape, 10, seed=0)
    generator = torch.Generator().manual_seed(0)
    params = torch.cat([p.detach().flatten() for p in model.parameters()])
    noise = torch.randn(NUM_CLIENTS, len(params), generator=generator)
    masks = torch.rand(coalitions, NUM_CLIENTS, generator=generator) < 0.5
    return Game(model, inputs, targets, params + 0.02 * noise, params, masks)


def one_by_one(judge: Validation) -> Validation:
    """Let operations be split among the cores, instead of models."""
    judge.side_by_side = lambda at_most: None  # type: ignore[method-assign]  # noqa: ARG005
    return judge


def without_channels_last(judge: Validation) -> Validation:
    judge.batches = [
        batch._replace(content=map_tensors(Tensor.contiguous, batch.content))
        for batch in judge.batches
    ]
    return judge


def batched(game: Game, at_once: int, chunk: int) -> Callable[[], object]:
    """Evaluate ``at_once`` coalitions in one call of ``torch.func.vmap``."""
    named = dict(game.model.named_parameters())
    names = trainable_names(game.model)
    buffers = dict(game.model.named_buffers())
    model = game.model.eval()

    def logits(params: Tensor, images: Tensor) -> Tensor:
        state, start = dict(buffers), 0
        for name in names:
            size = named[name].numel()
            state[name] = params[start : start + size].view(named[name].shape)
            start += size
        answer: Tensor = functional_call(model, state, (images,))
        return answer

    def ask() -> None:
        with torch.inference_mode():
            for block in torch.split(game.masks, at_once):
                means = coalition_means(game.client_params, block, game.global_params)
                for start in range(0, len(game.targets), chunk):
                    images = game.inputs[start : start + chunk]
                    labels = game.targets[start : start + chunk]
                    answers = vmap(logits, in_dims=(0, None))(means, images)
                    (answers.argmax(dim=-1) == labels).sum(dim=1)

    return ask


def measure(
    ours: Callable[[], object], other: Callable[[], object], times: int
) -> tuple[float, float]:
    """Return the median seconds of both, called in turns: CPU seconds where one core works."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(times + 1):
        for call, kept in zip((ours, other), seconds, strict=True):
            started = clock()
            call()
            if turn:
                kept.append(clock() - started)
    return median(seconds[0]), median(seconds[1])


def alternatives(game: Game) -> dict[str, Callable[[], object]]:
    ways = {
        f"chunks of {chunk} images": game.ask(game.judge(chunk))
        for chunk in CHUNKS
        if chunk <= len(game.targets)
    }
    if game.inputs.shape[-1] > 8:
        ways["channels first"] = game.ask(without_channels_last(game.judge()))
    ways["operations split among cores"] = game.ask(one_by_one(game.judge()))
    ways["vmap over 8 coalitions"] = batched(game, 8, 100)
    return ways


def main(
    times: Annotated[int, typer.Option(help="repetitions")] = 5,
    coalitions: Annotated[int, typer.Option(help="coalitions per repetition")] = 32,
    threads: Annotated[int, typer.Option(help="torch threads; 0: torch's own choice")] = 0,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    if threads:
        torch.set_num_threads(threads)
    figures = []
    for name, (model_name, shape, images) in CASES.items():
        game = build_game(model_name, shape, images, coalitions)
        default = game.ask(game.judge())
        for title, way in alternatives(game).items():
            ours, other = (1e3 * s / coalitions for s in measure(default, way, times))
            ratio = other / ours
            figures.append(Figure(f"{name}: as it is / {title}", ours, other, "ms", ratio, ">= 1"))
    report("Milliseconds per coalition", "coalitions", figures, write=write)


if __name__ == "__main__":
    typer.run(main)
