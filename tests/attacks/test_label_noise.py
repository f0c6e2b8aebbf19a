from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.attacks.label_noise import flip_labels


@given(
    count=st.integers(0, 200),
    num_classes=st.integers(2, 20),
    ratio=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
def test_exactly_the_share_is_flipped_and_never_to_the_same_class(count, num_classes, ratio, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (count,), generator=generator)
    kept = labels.clone()
    flipped = flip_labels(labels, num_classes, ratio, generator)
    assert int((flipped != labels).sum()) == round(ratio * count)
    assert flipped.dtype == torch.int64
    assert bool(((flipped >= 0) & (flipped < num_classes)).all())
    assert torch.equal(labels, kept)
