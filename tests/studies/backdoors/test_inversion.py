from __future__ import annotations

import torch
from torch import Tensor

from fedif_studies.backdoors.inversion import invert_triggers


def by_corner(images: Tensor) -> Tensor:
    """Say class 1 where the last pixel is bright; else 2 or 0, by the sum of the others."""
    corner = images[:, 0, -1, -1]
    rest = images.flatten(1)[:, :-1].sum(dim=1)
    return torch.stack([4 - rest, 40 * (corner - 0.5), rest - 4], dim=1)


def test_the_class_with_a_backdoor_has_the_smallest_mask_and_it_covers_the_trigger():
    images = torch.rand(40, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    images[:, 0, -1, -1] *= 0.4
    images[0, 0, 0, 0], images[1, 0, 0, 0], images[2, 0, -1, -1] = 0.0, 1.0, 1.0
    generator = torch.Generator().manual_seed(1)
    triggers = invert_triggers(by_corner, images, 3, steps=100, generator=generator)
    assert int(triggers.sizes.argmin()) == 1
    mask = triggers.masks[1, 0]
    assert int(mask.argmax()) == 8
    taken = by_corner(triggers.stamp(images, 1)).argmax(dim=1)
    assert float((taken == 1).double().mean()) > 0.9
    assert bool(((triggers.masks >= 0) & (triggers.masks <= 1)).all())
    assert bool(((triggers.patterns >= 0) & (triggers.patterns <= 1)).all())
