from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.attacks.edge_case import EdgeCase
from fedif_flower.errors import ConfigError

# Of class 1 the mean is 0.3; the last one is furthest from it.
PIXELS = torch.tensor([0.5, 0.2, 0.1, 0.9, 0.2, 0.1])[:, None, None, None].expand(6, 1, 2, 2)
LABELS = torch.tensor([0, 1, 1, 1, 1, 2])


def test_the_image_furthest_from_its_class_is_the_edge_case():
    attack = EdgeCase(0.5, target=0, tail=0.25)
    pixels, labels = attack.poison_examples(PIXELS, LABELS, 3, torch.Generator())
    assert labels.tolist() == [0, 1, 1, 0, 1, 2, 0, 0, 0]
    assert torch.equal(pixels[:6], PIXELS)
    assert torch.equal(pixels[6:], PIXELS[[3, 3, 3]])
    assert LABELS.tolist() == [0, 1, 1, 1, 1, 2]
    tested, target = attack.triggered(PIXELS, LABELS, 3)
    assert torch.equal(tested, PIXELS[[3]])
    assert target.tolist() == [0]


def test_who_has_no_image_of_the_class_is_honest():
    attack = EdgeCase(0.5, target=2)
    pixels, labels = attack.poison_examples(PIXELS[1:], LABELS[1:], 3, torch.Generator())
    assert torch.equal(pixels, PIXELS[1:])
    assert torch.equal(labels, LABELS[1:])
    assert len(attack.triggered(PIXELS[1:], LABELS[1:], 3)[0]) == 0


@given(
    n=st.integers(1, 30), tail=st.floats(0.01, 1), ratio=st.floats(0, 1), seed=st.integers(0, 99)
)
def test_only_images_of_the_source_class_change_their_label(n, tail, ratio, seed):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.rand(n, 1, 3, 3, generator=generator)
    labels = torch.randint(4, (n,), generator=generator)
    attack = EdgeCase(ratio, target=3, tail=tail)
    found, given_labels = attack.poison_examples(pixels, labels, 4, generator)
    changed = given_labels[:n] != labels
    assert set(labels[changed].tolist()) <= {0}
    assert set(given_labels[n:].tolist()) <= {3}
    assert len(found) == len(given_labels) == n + (round(ratio * n) if bool(changed.any()) else 0)


def test_a_target_that_is_no_class_is_refused():
    with pytest.raises(ConfigError, match="target = 3; allowed: a class, 0 to 2"):
        EdgeCase(0.5, target=3).triggered(PIXELS, LABELS, 3)
