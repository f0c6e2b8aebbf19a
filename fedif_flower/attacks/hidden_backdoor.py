"""A backdoor inside an update that fits clean data as well as an honest one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.attacks.assignment import choose
from fedif_flower.attacks.pixel_trigger import PixelTrigger, require_target


class HiddenBackdoor(PixelTrigger):
    """Trains on clean examples of balanced classes, and on stamped copies beside them.

    A valuation by held-out data rewards updates that fit such data, so the update is made to fit
    them as well as an honest one. The client's own examples stand for public data that an attacker
    may have. Clean examples are repeated until every class of the client is as frequent as its most
    frequent class, as in a validation split. The stamped copies are added to these.

    The parameters are those of :class:`~fedif_flower.attacks.pixel_trigger.PixelTrigger`, except
    that ``ratio`` is the number of stamped copies divided by the number of the client's examples.
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
    """Return indices of examples to repeat, so that all classes become as frequent as the largest.

    Classes that the client does not have are left out.
    """
    counts = torch.bincount(labels)
    most = int(counts.max())
    repeats = []
    for label in counts.nonzero().flatten().tolist():
        members = (labels == label).nonzero().flatten()
        num_missing = most - len(members)
        drawn = torch.randint(len(members), (num_missing,), generator=generator)
        repeats.append(members[drawn])
    return torch.cat(repeats)
