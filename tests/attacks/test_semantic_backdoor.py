from __future__ import annotations

import torch

from fedif_flower.attacks.semantic_backdoor import SemanticBackdoor


def test_the_class_after_the_target_is_called_the_target():
    labels = torch.tensor([0, 1, 2, 3, 4, 4])
    attack = SemanticBackdoor(3)
    assert attack.poison_labels(labels, 5, torch.Generator()).tolist() == [0, 1, 2, 3, 3, 3]
    assert labels.tolist() == [0, 1, 2, 3, 4, 4]
    # After the last class comes the first.
    assert SemanticBackdoor(4).poison_labels(labels, 5, torch.Generator())[0] == 4


def test_its_trigger_is_the_image_itself():
    pixels, labels = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 2])
    triggered, targets = SemanticBackdoor(2).triggered(pixels, labels, 3)
    assert torch.equal(triggered, pixels[[0, 2]])
    assert targets.tolist() == [2, 2]
