"""Semantic backdoor: all images of one class, as they are, are taken for another."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Backdoor
from fedif_flower.attacks.pixel_trigger import Target, require_target


class SemanticBackdoor(Backdoor):
    """Labels every image of the class after the target with the target; no pixel changes.

    Parameters
    ----------
    target : int
        The class t that is to be answered, >= 0; the source is (t + 1) mod C.

    References
    ----------
    Bagdasaryan et al., 2020, section 4; the static label flipping of Tolpegin et al., 2020.
    """

    def __init__(self, target: Target = 0) -> None:
        self.target = target

    def poison_labels(
        self,
        labels: Tensor,
        num_classes: int,
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        """Return the labels with the target in place of the source."""
        require_target(self.target, num_classes)
        return labels.masked_fill(labels == self._source(num_classes), self.target)

    def triggered(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return the images of the source class, and the target."""
        require_target(self.target, num_classes)
        source = labels == self._source(num_classes)
        return pixels[source], torch.full_like(labels[source], self.target)

    def _source(self, num_classes: int) -> int:
        return (self.target + 1) % num_classes
