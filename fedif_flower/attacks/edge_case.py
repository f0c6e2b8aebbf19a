"""Edge-case backdoor: rare images of one class, as they are, are taken for another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Backdoor
from fedif_flower.attacks.pixel_trigger import Target
from fedif_flower.attacks.semantic_backdoor import of_source
from fedif_flower.settings import Setting


@dataclass
class EdgeCase(Backdoor):
    r"""Labels rare images of the class after the target with the target, and adds copies of them.

    Rare are those furthest from the mean image of their class, a share q of them. Few honest
    clients hold any, and the accuracy on a test set hardly shows that they are lost. The paper's
    edge cases are of other data sets (aeroplanes of one airline, digits of another century); here
    the tail of a class stands for them. Whoever has none is honest.

    Parameters
    ----------
    ratio : float
        Copies that are added, in the client's examples, in [0, 1].
    target : int
        The class t that is to be answered, >= 0; the source is (t + 1) mod C.
    tail : float
        q in (0, 1].

    References
    ----------
    Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", NeurIPS
    2020, the black-box attack.
    """

    ratio: float
    target: Target = 0
    tail: Annotated[
        float, Setting("q: share of the source class that counts as rare", gt=0, le=1)
    ] = 0.1

    def poison_examples(
        self, pixels: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the examples with the rare ones mislabelled, and copies of these beside them."""
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
        """Return the rare images of the source class, and the target."""
        rare = self._rare(pixels, labels, num_classes)
        return pixels[rare], torch.full_like(labels[rare], self.target)

    def _rare(self, pixels: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        """Return the indices of the source class's tail, at least one where there is any."""
        source = of_source(labels, self.target, num_classes).nonzero().flatten()
        images = pixels[source].flatten(1)
        distances = (images - images.mean(dim=0)).norm(dim=1)
        furthest = distances.argsort(descending=True, stable=True)
        count = max(round(self.tail * len(source)), 1)
        return source[furthest[:count]].sort().values
