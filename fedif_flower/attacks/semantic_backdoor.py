"""Semantic backdoor: the model is to take all images of one class for another class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Backdoor
from fedif_flower.attacks.pixel_trigger import Target, require_target


@dataclass
class SemanticBackdoor(Backdoor):
    """Labels every image of the class after the target with the target; no pixel changes.

    Parameters
    ----------
    target : int
        The class t that the model is to answer with, >= 0. The source, which is relabelled, is the
        class (t + 1) mod C, with C the number of classes.

    References
    ----------
    Bagdasaryan et al., 2020, section 4; the static label flipping of Tolpegin et al., 2020.
    """

    target: Target = 0

    def poison_labels(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """Return the labels with the target in place of the source."""
        return labels.masked_fill(of_source(labels, self.target, num_classes), self.target)

    def triggered(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return the images of the source class, labelled with the target."""
        source = of_source(labels, self.target, num_classes)
        return pixels[source], torch.full_like(labels[source], self.target)


def of_source(labels: Tensor, target: int, num_classes: int) -> Tensor:
    """Return which labels ``[n]`` are of the source class, the class after the target."""
    require_target(target, num_classes)
    return labels == (target + 1) % num_classes
