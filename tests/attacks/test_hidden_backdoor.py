from __future__ import annotations

import torch

from fedif_flower.attacks.hidden_backdoor import HiddenBackdoor
from fedif_flower.attacks.pixel_trigger import stamp_square


def test_clean_examples_are_balanced_and_stamped_copies_come_on_top():
    pixels, labels = torch.rand(6, 1, 8, 8).mul_(0.9), torch.tensor([0, 0, 0, 2, 2, 4])
    generator = torch.Generator().manual_seed(0)
    examples, targets = HiddenBackdoor(0.5, 1).poison_examples(pixels, labels, 5, generator)
    clean, stamped = examples[:9], examples[9:]
    assert torch.equal(clean[:6], pixels)
    assert torch.bincount(targets[:9], minlength=5).tolist() == [3, 0, 3, 0, 3]
    for image, label in zip(clean, targets[:9], strict=True):
        same = [i for i in range(6) if torch.equal(pixels[i], image)]
        assert labels[same[0]] == label
    assert len(stamped) == 3
    assert targets[9:].tolist() == [1, 1, 1]
    copies = stamp_square(pixels)
    assert all(any(torch.equal(image, copy) for copy in copies) for image in stamped)
