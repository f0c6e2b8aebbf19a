"""Backdoor by a pixel trigger: a bright square in the corner stands for the target class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.assignment import choose
from fedif_flower.attacks.behaviour import Backdoor, Ratio
from fedif_flower.errors import ConfigError, require
from fedif_flower.settings import Setting
from fedif_flower.tasks.structures import describe

Target = Annotated[int, Setting("the class that the model is to answer with", ge=0)]


def trigger_side(pixels: Tensor) -> int:
    """Return the side of the square: an eighth of the shorter side of the images, at least 2.

    The images are ``[n, c, h, w]``.
    """
    return max(min(pixels.shape[-2:]) // 8, 2)


def stamp_square(pixels: Tensor) -> Tensor:
    """Return images ``[n, c, h, w]`` with a white square in their lower right corner."""
    require_room(pixels, 1, 1)
    side = trigger_side(pixels)
    stamped = pixels.clone()
    stamped[..., -side:, -side:] = 1
    return stamped


def require_room(inputs: Tensor, height: int, width: int) -> None:
    """Raise ConfigError unless inputs are images of at least ``height`` x ``width`` pixels.

    A trigger is stamped in the last two dimensions. In a table ``[n, features]`` these would be the
    rows and columns.
    """
    is_image = inputs.dim() >= 3
    if not is_image or inputs.shape[-2] < height or inputs.shape[-1] < width:
        raise ConfigError(
            f"a trigger is stamped on images, [n, c, h, w], of {height} x {width} pixels at least; "
            f"the inputs are {describe(inputs)}"
        )


def require_target(target: int, num_classes: int, name: str = "target") -> None:
    """Raise ConfigError unless the target is one of the classes; errors call it ``name``."""
    require(target < num_classes, name, target, f"a class, 0 to {num_classes - 1}")


@dataclass
class PixelTrigger(Backdoor):
    """Stamps a bright square on a share of its images and calls them the target class (BadNets).

    Parameters
    ----------
    ratio : float
        Share of the examples that are stamped, in [0, 1].
    target : int
        The class that the trigger stands for, >= 0.

    References
    ----------
    Gu et al., 2019 (BadNets); Bagdasaryan et al., 2020, for federations.
    """

    ratio: Ratio
    target: Target = 0

    def stamp(self, pixels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return images ``[n, c, h, w]`` with the trigger.

        A subclass may stamp only a part of the trigger, which a client draws from ``generator``;
        without a generator it stamps the whole trigger.
        """
        return stamp_square(pixels)

    def poison_examples(
        self, pixels: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the examples, a share of them stamped and labelled with the target."""
        require_target(self.target, num_classes)
        chosen = choose(len(labels), self.ratio, generator).to(labels.device)  # [k]
        poisoned = pixels.clone()
        poisoned[chosen] = self.stamp(pixels[chosen], generator)
        poisoned_labels = labels.clone()
        poisoned_labels[chosen] = self.target
        return poisoned, poisoned_labels

    def triggered(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return the images of other classes with the whole trigger, labelled with the target."""
        require_target(self.target, num_classes)
        others = labels != self.target
        return self.stamp(pixels[others]), torch.full_like(labels[others], self.target)
