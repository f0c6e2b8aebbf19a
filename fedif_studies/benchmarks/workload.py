"""The paper's CIFAR-10 protocol as every contender trains it: same clients, examples, steps."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.settings import Scalar
from fedif_flower.strategies.sampling import sample_clients
from fedif_flower.tasks.data import (
    Dataset,
    Normalization,
    dirichlet_partition,
    load_dataset,
    to_pixels,
)

PROJECT = Path(__file__).resolve().parents[2]
CLASSES, CLIENTS, BATCH_SIZE, LEARNING_RATE, MOMENTUM = 10, 100, 16, 0.001, 0.9


@dataclass(frozen=True)
class Workload:
    """100 clients, 10 a round, B = 16, Dirichlet(1) partitions of an image folder.

    Attributes
    ----------
    data_dir : str
        ``train/<class>/`` and ``test/<class>/`` with images of 3x32x32.
    rounds, epochs : int
        Rounds and E.
    """

    data_dir: str
    rounds: int
    epochs: int

    @cached_property
    def dataset(self) -> Dataset:
        """The images, memory-mapped."""
        return load_dataset("image-folder", self.data_dir)

    @cached_property
    def partitions(self) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Which images each client has."""
        return dirichlet_partition(self.dataset, CLIENTS, 1.0, 0)

    def config(self, strategy: str, output_dir: str) -> RunConfig:
        """Return our run config for it, without evaluation in the rounds that are timed."""
        settings: dict[str, Scalar] = {
            "num-server-rounds": self.rounds,
            "num-clients": CLIENTS,
            "local-epochs": self.epochs,
            "batch-size": BATCH_SIZE,
            "learning-rate": LEARNING_RATE,
            "momentum": MOMENTUM,
            "dataset": "image-folder",
            "data-dir": self.data_dir,
            "output-dir": output_dir,
            "model": "cnn",
            "strategy": strategy,
            "eval-every": self.rounds,
            "device": "cpu",
        }
        return RunConfig.from_run_config(default_run_config() | settings)

    def sampled(self, server_round: int) -> list[int]:
        """Return the clients that our strategies draw in a round."""
        nodes = [ClientNode(i, i) for i in range(CLIENTS)]
        return [node.partition_id for node in sample_clients(nodes, 0.1, 1, 0, server_round)]

    def steps_of(self, client: int) -> int:
        """Return the local steps of a client in a round."""
        return self.epochs * math.ceil(len(self.partitions[client]) / BATCH_SIZE)

    def examples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's normalised images ``[n, 3, 32, 32]`` and labels ``[n]``."""
        data, chosen = self.dataset, self.partitions[client]
        pixels = to_pixels(data.train.images[chosen], data.max_value)
        labels = torch.from_numpy(data.train.labels[chosen])
        return Normalization(data.mean, data.std)(pixels), labels

    def to_json(self) -> str:
        """Return the settings for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """Read what :meth:`to_json` wrote."""
        return cls(**json.loads(text))


class RoundClock:
    """Notes how long rounds take and how many local steps each has."""

    def __init__(self) -> None:
        self._last = 0.0
        self._rounds: list[tuple[float, int]] = []

    def start(self) -> None:
        """Note that a round begins; it does by itself where another ends."""
        self._last = time.perf_counter()

    def end(self, steps: int) -> None:
        """Note that a round ends."""
        now = time.perf_counter()
        self._rounds.append((now - self._last, steps))
        self._last = now

    def print(self) -> None:
        """Print a JSON line: seconds and steps of each round but the first and the last.

        The first warms up; after the last, some contenders evaluate or shut down.
        """
        seconds, steps = zip(*self._rounds[1:-1], strict=True)
        print(json.dumps({"seconds": seconds, "steps": steps}))


def synthetic_images(folder: Path, train: int, test: int) -> None:
    """Write random images as CIFAR-10's: training cost does not depend on what they show."""
    generator = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        for index, pixels in enumerate(_random_images(generator, count)):
            target = folder / split / str(index % CLASSES)
            target.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(target / f"{index:05d}.bmp")


def _random_images(
    generator: np.random.Generator, count: int
) -> Iterator[np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]]:
    for _ in range(count):
        yield generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
