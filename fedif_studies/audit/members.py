"""The members of an audited federation: their data, their behaviour and their claims."""

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

# The settings in which an audit differs from a run by default. With ten members, all 2**10
# coalitions can be trained.
AUDITED = 'num-clients=10 num-server-rounds=10 local-epochs=1 fraction-train=1.0 device="cpu"'
MISBEHAVING = 0.3  # The share of members that are marked: three of ten.
# The settings that an audit reads: those of the task, of training and of the attacks.
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
    """Raise ConfigError if a setting that no audit reads differs from its default.

    An audit chooses its own strategies, attacks and participants. A setting of these would change
    nothing, but the audit would claim to have been made with it.
    """
    values = config.identity()
    read = {key: value for key, value in values.items() if _is_read(key)}
    # Defaults of other settings may depend on these, for example on the data set.
    usual = {**RunConfig.defaults(), **parse_overrides(AUDITED), **read}
    usual_values = RunConfig.from_run_config(usual).identity()
    for key in sorted(values.keys() | usual_values.keys()):
        value = values.get(key)
        usual_value = usual_values.get(key)
        allowed = f"{usual_value!r}, as an audit does not use this setting"
        require(value == usual_value, key, value, allowed)


def _is_read(key: str) -> bool:
    return key in READ or key.startswith(READ_SECTIONS)


@dataclass(frozen=True)
class AuditMember:
    """One member of a federation.

    Attributes
    ----------
    identity : int
        Seeds everything random that the member does. Members with the same identity, data and
        behaviour send the same updates.
    pixels, labels : Tensor
        Its n examples: ``[n, c, h, w]`` in [0, 1], and ``[n]``.
    claimed : float
        The number of examples that it claims to have, > 0.
    behaviour : Behaviour
        How it trains and replies; by default honestly.
    is_marked : bool
        Whether a valuation should give it a low value, since it is malicious, a free rider or has
        few examples; in a game for a larger share, whether the game's gain is measured on it.
    rounds : int, optional
        It takes part in so many rounds, the first ones; by default in all.
    """

    identity: int
    pixels: Tensor
    labels: Tensor
    claimed: float
    behaviour: Behaviour = field(default_factory=Behaviour)
    is_marked: bool = False
    rounds: int | None = None

    def takes_part(self, server_round: int) -> bool:
        """Return whether it takes part in a round for which it is drawn."""
        return self.rounds is None or server_round <= self.rounds


class AuditTask:
    """What an audit's federations share: a data set, its split among members, and a model.

    Parameters
    ----------
    config : RunConfig
        Has the data set, the model, local training, ``num-clients`` and ``num-server-rounds``.
    images : int
        Use only so many training images, and half as many test images: the same ones in every
        audit. With 0, use all.

    Raises
    ------
    ConfigError
        If the task does not classify images, the model has buffers, or the data set has fewer
        images.
    """

    def __init__(self, config: RunConfig, images: int = 0) -> None:
        require(config.task == IMAGES, "task", config.task, IMAGES)
        self.config = settled(config)
        self.images = images
        self.server: LoadedTask = load_task(self.config)
        self._require_parameters_alone()
        if images:
            validation_rows, test_rows = self.test_rows
            self.server = replace(
                self.server,
                validation=self.held_out(validation_rows, self.config.seed),
                test=self.held_out(test_rows, self.config.seed),
            )

    @classmethod
    def of(cls, **settings: Scalar) -> AuditTask:
        """Return a task with these settings, whose keys have underscores; one epoch, on the CPU."""
        usual = {**RunConfig.defaults(), "local-epochs": 1, "device": "cpu"}
        return cls(RunConfig.from_run_config({**usual, **with_hyphens(settings)}))

    def new_model(self, seed: int) -> nn.Module:
        """Return the untrained model that a seed gives."""
        return self.server.task.build_model(seed)

    def _require_parameters_alone(self) -> None:
        """Raise ConfigError if the model has buffers, as the statistics of batch norm are.

        Members of an audit exchange parameters alone, and train one model in turn: its buffers
        would mix the data of all members, and no held-out loss would know them.
        """
        buffers = list(self.new_model(self.config.seed).buffers())
        allowed = "in an audit a model without buffers, such as 'mlp' or 'lenet5'"
        require(not buffers, "model", self.config.model, allowed)

    def transformed(self, pixels: Tensor) -> Tensor:
        """Return pixels ``[n, c, h, w]`` in [0, 1], transformed into inputs of the model."""
        transform = self.server.task.transform
        if transform is None:
            return pixels
        return transform(pixels)

    @cached_property
    def dataset(self) -> Dataset:
        """The data set, or the part of it that the audit uses."""
        whole = load_dataset(self.config.dataset, self.config.data_dir)
        if not self.images:
            return whole
        train = draw_images(whole.train, self.images, "train")
        test = draw_images(whole.test, self.images // 2, "test")
        return replace(whole, train=train, test=test)

    def examples(self, split: Split, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return rows of a split: pixels ``[n, c, h, w]`` in [0, 1], and labels ``[n]``."""
        pixels = to_pixels(split.images[rows], self.dataset.max_value)
        return pixels, torch.from_numpy(split.labels[rows].copy())

    def held_out(self, rows: NDArray[np.int64], seed: int) -> Validation:
        """Return rows of the test split as a held-out set for the model that a seed gives."""
        pixels, labels = self.examples(self.dataset.test, np.sort(rows))
        inputs = self.transformed(pixels)
        return Validation(self.new_model(seed), inputs, labels, device=self.config.device)

    @cached_property
    def members(self) -> list[AuditMember]:
        """Honest members, among whom a Dirichlet distribution divides the train split (seeded)."""
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
        """The test split's rows in the validation split, and its other rows, drawn by the seed."""
        return split_test(len(self.dataset.test), self.config.seed)

    @cached_property
    def paying(self) -> Validation:
        """Held-out data to pay by: test examples that are not in the validation split.

        They are as many, as far as the test split has them. They stand for data that a run draws by
        a secret salt, so that no member knows them.
        """
        validation_rows, others = self.test_rows
        order = numpy_generator("audit-salt", self.config.seed).permutation(len(others))
        salted = others[order[: len(validation_rows)]]
        return self.held_out(salted, self.config.seed)

    def marked(self, seed: int, share: float = MISBEHAVING) -> list[int]:
        """Return the members that misbehave with this seed: a share of all, at least one."""
        count = max(round(share * self.config.num_clients), 1)
        generator = numpy_generator("audit-marked", self.config.seed, seed)
        marked = generator.choice(self.config.num_clients, count, replace=False)
        return sorted(marked.tolist())


def draw_images(split: Split, count: int, name: str) -> Split:
    """Return ``count`` random images of a split, in the split's order.

    Parameters
    ----------
    split : Split
        The train or the test split.
    count : int
        The number of images, at most as many as the split has.
    name : str
        The split's name, which seeds the draw: it is the same in every audit.

    Raises
    ------
    ConfigError
        If the split has fewer images.
    """
    require(count <= len(split), "images", count, f"at most {len(split)} of the {name} split")
    rows = np.sort(numpy_generator(f"subset-{name}", 0).permutation(len(split))[:count])
    return Split(split.images[rows], split.labels[rows])
