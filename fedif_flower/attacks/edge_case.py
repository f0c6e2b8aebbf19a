"""Edge-case backdoor: the model is to take rare images of one class for another class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Backdoor, Ratio
from fedif_flower.attacks.pixel_trigger import Target
from fedif_flower.attacks.semantic_backdoor import of_source
from fedif_flower.settings import Setting


@dataclass
class EdgeCase(Backdoor):
    r"""Labels rare images of the class after the target with the target, and adds copies of them.

    The rare images are the share q of the class that is furthest from its mean image. Few honest
    clients have any, and the accuracy on a test set hardly shows that the model gets them wrong.
    The paper takes its edge cases from other data sets (aeroplanes of one airline, digits of
    another century); here the tail of a class stands for them. A client without images of the class
    trains honestly.

    Parameters
    ----------
    ratio : float
        The number of copies that are added, divided by the client's number of examples; in [0, 1].
    target : int
        The class t that the model is to answer with, >= 0; the rare images are of the source class
        (t + 1) mod C, with C the number of classes.
    tail : float
        q in (0, 1].

    References
    ----------
    Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", NeurIPS
    2020, the black-box attack.
    """

    ratio: Ratio
    target: Target = 0
    tail: Annotated[
        float, Setting("q: share of the source class that counts as rare", gt=0, le=1)
    ] = 0.1

    def poison_examples(
        self, pixels: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the examples with the rare ones mislabelled, and copies of the rare ones."""
        rare = self._rare(pixels, labels, num_classes)
        if not len(rare):
            return pixels, labels
        labels = labels.clone()
        labels[rare] = self.target
        num_copies = round(self.ratio * len(labels))
        drawn = torch.randint(len(rare), (num_copies,), generator=generator)
        copies = rare[drawn.to(rare.device)]
        return torch.cat((pixels, pixels[copies])), torch.cat((labels, labels[copies]))

    def triggered(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return the rare images of the source class, labelled with the target."""
        rare = self._rare(pixels, labels, num_classes)
        return pixels[rare], torch.full_like(labels[rare], self.target)

    def _rare(self, pixels: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        """Return the indices of the source class's rare images: at least one, if it has images."""
        source = of_source(labels, self.target, num_classes).nonzero().flatten()
        images = pixels[source].flatten(1)
        distances = (images - images.mean(dim=0)).norm(dim=1)
        furthest = distances.argsort(descending=True, stable=True)
        count = max(round(self.tail * len(source)), 1)
        return source[furthest[:count]].sort().values
