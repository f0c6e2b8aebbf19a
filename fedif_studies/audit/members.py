"""Who takes part in an audited federation: data, behaviour, and what each claims."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedif_flower.attacks import Behaviour
from fedif_flower.errors import require
from fedif_flower.run.config import RunConfig, with_hyphens
from fedif_flower.run.loaded_task import LoadedTask, load_task
from fedif_flower.seeding import numpy_generator
from fedif_flower.settings import Scalar, parse_overrides
from fedif_flower.tasks.config import IMAGES, TaskConfig, TrainingConfig
from fedif_flower.tasks.data.cache import Dataset, Split
from fedif_flower.tasks.data.datasets import load_dataset, to_pixels
from fedif_flower.tasks.data.partition import dirichlet_partition, split_test
from fedif_flower.tasks.images import settled
from fedif_flower.valuation import Validation

# What an audit's federations differ in from a run's: ten members, of whom all coalitions train.
AUDITED = 'num-clients=10 num-server-rounds=10 local-epochs=1 fraction-train=1.0 device="cpu"'
# What its federations read of a run config: the task, training, and what attacks are made of.
READ = frozenset(
    [
        *TaskConfig.key_names(),
        *TrainingConfig.key_names(),
        "device",
        "num-clients",
        "num-server-rounds",
        "poison-ratio-max",
        "poison-ratio-min",
        "seed",
    ]
)
READ_SECTIONS = ("adversarial.", "free-rider-noise.", "free-rider-step.", "gradient-noise.")


def require_read(config: RunConfig) -> None:
    """Raise ConfigError for a setting that no federation of an audit reads.

    An audit has all members in all rounds of rules of its own, and attacks of its own: another
    setting would change nothing, and the audit would pass for one of it.
    """
    values = config.identity()
    read = {key: value for key, value in values.items() if _is_read(key)}
    # What is left out is made of these, such as a default that depends on the data set.
    usual = {**RunConfig.defaults(), **parse_overrides(AUDITED), **read}
    usual_values = RunConfig.from_run_config(usual).identity()
    for key in sorted(values.keys() | usual_values.keys()):
        value = values.get(key)
        usual_value = usual_values.get(key)
        allowed = f"{usual_value!r}: an audit does not read it"
        require(value == usual_value, key, value, allowed)


def _is_read(key: str) -> bool:
    return key in READ or key.startswith(READ_SECTIONS)


@dataclass(frozen=True)
class AuditMember:
    """One member of a federation.

    Attributes
    ----------
    identity : int
        What its randomness depends on: members with the same identity and data send the same.
    pixels, labels : Tensor
        ``[n, c, h, w]`` in [0, 1] and ``[n]``.
    claimed : float
        The number of examples it says it has, > 0.
    behaviour : Behaviour
        What it does.
    is_marked : bool
        Whether a valuation should find it: malicious, a free rider, or with few examples.
    rounds : int, optional
        It takes part in the first so many only. Default: in all.
    """

    identity: int
    pixels: Tensor
    labels: Tensor
    claimed: float
    behaviour: Behaviour = field(default_factory=Behaviour)
    is_marked: bool = False
    rounds: int | None = None

    def takes_part(self, server_round: int) -> bool:
        """Return whether it takes part in a round, if it is drawn."""
        return self.rounds is None or server_round <= self.rounds


class AuditTask:
    """A data set, a model and the server's splits, divided among members.

    Parameters
    ----------
    config : RunConfig
        Names the data set, the model, local training, ``num-clients`` and ``num-server-rounds``.
    images : int
        Of the data set only so many training images, and half as many test images, are there: the
        same ones in every audit. 0: all.

    Raises
    ------
    ConfigError
        If its task is none of images, or the data set has fewer of them.
    """

    def __init__(self, config: RunConfig, images: int = 0) -> None:
        require(config.task == IMAGES, "task", config.task, IMAGES)
        self.config = settled(config)
        self.images = images
        self.server: LoadedTask = load_task(self.config)
        if images:
            validation_rows, test_rows = self.test_rows
            self.server = replace(
                self.server,
                validation=self.held_out(validation_rows, self.config.seed),
                test=self.held_out(test_rows, self.config.seed),
            )

    @classmethod
    def of(cls, **settings: Scalar) -> AuditTask:
        """Return a task of one epoch on the CPU; keys of a run config have underscores."""
        usual = {**RunConfig.defaults(), "local-epochs": 1, "device": "cpu"}
        return cls(RunConfig.from_run_config({**usual, **with_hyphens(settings)}))

    def new_model(self, seed: int) -> nn.Module:
        """Return the untrained model of a seed."""
        return self.server.task.build_model(seed)

    def transformed(self, pixels: Tensor) -> Tensor:
        """Return pixels ``[n, c, h, w]`` in [0, 1] as the model takes them."""
        transform = self.server.task.transform
        if transform is None:
            return pixels
        return transform(pixels)

    @cached_property
    def dataset(self) -> Dataset:
        """The data set, or the part of it that there is; its train split is divided."""
        whole = load_dataset(self.config.dataset, self.config.data_dir)
        if not self.images:
            return whole
        train = draw_images(whole.train, self.images, "train")
        test = draw_images(whole.test, self.images // 2, "test")
        return replace(whole, train=train, test=test)

    def examples(self, split: Split, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return some pixels ``[n, c, h, w]`` in [0, 1] of a split, and their labels ``[n]``."""
        pixels = to_pixels(split.images[rows], self.dataset.max_value)
        return pixels, torch.from_numpy(split.labels[rows].copy())

    def held_out(self, rows: NDArray[np.int64], seed: int) -> Validation:
        """Return test examples as a set to judge by, for the model of a seed."""
        pixels, labels = self.examples(self.dataset.test, np.sort(rows))
        inputs = self.transformed(pixels)
        return Validation(self.new_model(seed), inputs, labels, device=self.config.device)

    @cached_property
    def members(self) -> list[AuditMember]:
        """Honest members, with parts drawn by Dirichlet from the config's seed."""
        parts = dirichlet_partition(
            self.dataset.train.labels,
            self.config.num_clients,
            self.config.dirichlet_alpha,
            self.config.seed,
        )
        members = []
        for index, part in enumerate(parts):
            pixels, labels = self.examples(self.dataset.train, part)
            members.append(AuditMember(index, pixels, labels, claimed=float(len(part))))
        return members

    @cached_property
    def test_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of the validation split, and the others, as data set and seed say."""
        return split_test(len(self.dataset.test), self.config.seed)

    @cached_property
    def paying(self) -> Validation:
        """As many test examples as the validation split has, drawn by a salt that is no seed."""
        validation_rows, others = self.test_rows
        order = numpy_generator("audit-salt", self.config.seed).permutation(len(others))
        salted = others[order[: len(validation_rows)]]
        return self.held_out(salted, self.config.seed)

    def marked(self, seed: int, share: float = 0.3) -> list[int]:
        """Return which members misbehave with this seed, at least one."""
        count = max(round(share * self.config.num_clients), 1)
        generator = numpy_generator("audit-marked", self.config.seed, seed)
        marked = generator.choice(self.config.num_clients, count, replace=False)
        return sorted(marked.tolist())


def draw_images(split: Split, count: int, name: str) -> Split:
    """Return some images of a split, in their order.

    Parameters
    ----------
    split : Split
        Train or test.
    count : int
        How many, at most as many as there are.
    name : str
        Which are drawn depends on it alone.
    """
    require(count <= len(split), "images", count, f"at most {len(split)} of the {name} split")
    rows = np.sort(numpy_generator(f"subset-{name}", 0).permutation(len(split))[:count])
    return Split(split.images[rows], split.labels[rows])
