"""A backdoor inside an update that fits clean data as well as an honest one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.attacks.assignment import choose
from fedif_flower.attacks.pixel_trigger import PixelTrigger, require_target


class HiddenBackdoor(PixelTrigger):
    """Trains on clean examples of balanced classes, and on stamped copies beside them.

    Influence on held-out data rewards what fits such data. The client's own examples stand for
    the public data that an attacker has: the clean ones are drawn again until every class it has
    is as frequent as its most frequent one, as in a validation split, and the stamped copies come
    on top. Parameters as in :class:`~fedif_flower.attacks.pixel_trigger.PixelTrigger`; the ratio is
    the number of stamped copies over the number of examples.
    """

    def poison_examples(
        self, pixels: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return balanced clean examples, and stamped copies of a share of the client's own."""
        require_target(self.target, num_classes)
        chosen = choose(len(labels), self.ratio, generator).to(labels.device)  # [k]
        stamped = self.stamp(pixels[chosen], generator)
        targets = torch.full_like(labels[chosen], self.target)
        repeats = _repeats(labels.cpu(), generator)
        balanced = torch.cat((torch.arange(len(labels)), repeats)).to(labels.device)
        all_pixels = torch.cat((pixels[balanced], stamped))
        all_labels = torch.cat((labels[balanced], targets))
        return all_pixels, all_labels


def _repeats(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return indices that, beside all examples, make every class as frequent as the largest."""
    counts = torch.bincount(labels)
    most = int(counts.max())
    repeats = []
    for label in counts.nonzero().flatten().tolist():
        members = (labels == label).nonzero().flatten()
        num_missing = most - len(members)
        drawn = torch.randint(len(members), (num_missing,), generator=generator)
        repeats.append(members[drawn])
    return torch.cat(repeats)
