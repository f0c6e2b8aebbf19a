"""Who takes part in an audited federation: data, behaviour, and what each claims."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedif_flower.attacks import Behaviour, build_behaviour
from fedif_flower.errors import require
from fedif_flower.run.config import RunConfig
from fedif_flower.run.loaded_task import LoadedTask, load_task
from fedif_flower.seeding import numpy_generator
from fedif_flower.tasks.config import IMAGES
from fedif_flower.tasks.data import Dataset, dirichlet_partition, load_dataset, to_pixels
from fedif_flower.tasks.data.partition import split_test
from fedif_flower.tasks.images import settled
from fedif_flower.valuation import Validation

# What an audit's federations differ in from a run's: ten members, of whom all coalitions train.
AUDITED = 'num-clients=10 num-server-rounds=10 local-epochs=1 fraction-train=1.0 device="cpu"'


@dataclass(frozen=True)
class Member:
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


class AuditTask:
    """A data set, a model and the server's splits, divided among members.

    Parameters
    ----------
    config : RunConfig
        Names the data set, the model, local training, ``num-clients`` and ``num-server-rounds``.

    Raises
    ------
    ConfigError
        If its task is none of images.
    """

    def __init__(self, config: RunConfig) -> None:
        require(config.task == IMAGES, "task", config.task, IMAGES)
        self.config = settled(config)
        self.server: LoadedTask = load_task(self.config)

    def new_model(self, seed: int) -> nn.Module:
        """Return the untrained model of a seed."""
        return self.server.task.build_model(seed)

    def transformed(self, pixels: Tensor) -> Tensor:
        """Return pixels ``[n, c, h, w]`` in [0, 1] as the model takes them."""
        transform = self.server.task.transform
        return pixels if transform is None else transform(pixels)

    @cached_property
    def dataset(self) -> Dataset:
        """The data set, whose train split is divided."""
        return load_dataset(self.config.dataset, self.config.data_dir)

    @cached_property
    def members(self) -> list[Member]:
        """Honest members, with parts drawn by Dirichlet from the config's seed."""
        config, train = self.config, self.dataset.train
        parts = dirichlet_partition(
            self.dataset, config.num_clients, config.dirichlet_alpha, config.seed
        )
        return [
            Member(
                identity=index,
                pixels=to_pixels(train.images[part], self.dataset.max_value),
                labels=torch.from_numpy(train.labels[part].copy()),
                claimed=float(len(part)),
            )
            for index, part in enumerate(parts)
        ]

    @cached_property
    def public_validation(self) -> tuple[NDArray[np.uint8], Tensor]:
        """What data set and seed say the validation split is: images, and labels ``[n]``."""
        test = self.dataset.test
        chosen, _ = split_test(len(test.labels), self.config.seed)
        return test.images[chosen], torch.from_numpy(test.labels[chosen].copy())

    @cached_property
    def paying(self) -> Validation:
        """As many test examples as the validation split has, drawn by a salt that is no seed."""
        test, config = self.dataset.test, self.config
        known, others = split_test(len(test.labels), config.seed)
        order = numpy_generator("audit-salt", config.seed).permutation(len(others))
        chosen = others[np.sort(order[: len(known)])]
        model = self.new_model(config.seed)
        return Validation(model, *self._of_test(chosen), device=config.device)

    def _of_test(self, chosen: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return images of the test split as the model takes them, and their labels."""
        test = self.dataset.test
        pixels = to_pixels(test.images[chosen], self.dataset.max_value)
        return self.transformed(pixels), torch.from_numpy(test.labels[chosen].copy())

    def marked(self, seed: int, share: float = 0.3) -> list[int]:
        """Return which members misbehave with this seed, at least one."""
        count = max(round(share * self.config.num_clients), 1)
        drawn = numpy_generator("audit-marked", self.config.seed, seed)
        return sorted(drawn.choice(self.config.num_clients, count, replace=False).tolist())

    def with_attack(self, attack: str, marked: Iterable[int]) -> list[Member]:
        """Return the members, of whom the marked ones behave like this."""
        config, chosen = self.config.replace(attack=attack), set(marked)
        return [
            replace(
                member,
                behaviour=build_behaviour(config, partition_id=index, seed=config.seed),
                is_marked=True,
            )
            if index in chosen
            else member
            for index, member in enumerate(self.members)
        ]

    def with_few_examples(self, marked: Iterable[int], share: float = 0.1) -> list[Member]:
        """Return the members, of whom the marked ones hold the first share of their part."""
        members = list(self.members)
        for index in marked:
            whole = members[index]
            n = max(round(share * len(whole.labels)), 1)
            members[index] = replace(
                whole,
                pixels=whole.pixels[:n],
                labels=whole.labels[:n],
                claimed=float(n),
                is_marked=True,
            )
        return members
