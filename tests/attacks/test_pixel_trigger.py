from __future__ import annotations

import pytest
import torch

from fedif_flower.attacks.pixel_trigger import PixelTrigger, stamp_square
from fedif_flower.errors import ConfigError


@pytest.mark.parametrize(("size", "side"), [(8, 2), (28, 3), (32, 4)])
def test_the_trigger_is_a_square_in_the_corner(size, side):
    stamped = stamp_square(torch.full((2, 3, size, size), 0.25))
    assert bool((stamped[:, :, -side:, -side:] == 1).all())
    assert int((stamped == 1).sum()) == 2 * 3 * side * side


def test_a_share_of_the_examples_has_it_and_the_target_label():
    pixels, labels = torch.zeros(10, 1, 8, 8), torch.arange(10)
    attack = PixelTrigger(0.3, target=7)
    stamped, targets = attack.poison_examples(pixels, labels, 10, torch.Generator().manual_seed(1))
    has_it = stamped[:, 0, 7, 7] == 1
    assert int(has_it.sum()) == 3
    assert bool((targets[has_it] == 7).all())
    assert torch.equal(targets[~has_it], labels[~has_it])
    assert int(pixels.sum()) == 0
    assert torch.equal(labels, torch.arange(10))
    again, _ = attack.poison_examples(pixels, labels, 10, torch.Generator().manual_seed(1))
    assert torch.equal(again, stamped)


def test_success_is_measured_on_images_of_other_classes():
    pixels = torch.rand(4, 1, 8, 8)
    triggered, targets = PixelTrigger(0.3, 2).triggered(pixels, torch.tensor([2, 1, 0, 2]), 3)
    assert torch.equal(triggered, stamp_square(pixels[[1, 2]]))
    assert targets.tolist() == [2, 2]


def test_a_target_that_is_no_class_is_named():
    with pytest.raises(ConfigError, match="target = 10; allowed: a class, 0 to 9"):
        PixelTrigger(0.5, 10).triggered(torch.zeros(1, 1, 8, 8), torch.zeros(1), 10)
