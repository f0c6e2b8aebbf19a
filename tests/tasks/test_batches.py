"""Data become batches, whatever they are made of."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from fedif_flower.tasks.batches import read_batches

# Input and target have one shape: stacked into one tensor they would raise no error.
INPUTS = torch.arange(5.0)
EXAMPLES = TensorDataset(INPUTS, -INPUTS)


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [2, 2, 1]), (True, [2, 2])])
def test_a_loader_that_a_batch_sampler_shuffles_is_read_in_order(drop_last, sizes):
    shuffled = BatchSampler(RandomSampler(EXAMPLES), 2, drop_last)
    batches = list(read_batches(DataLoader(EXAMPLES, batch_sampler=shuffled), None, 16))
    assert [len(inputs) for inputs, _ in batches] == sizes
    inputs, targets = map(torch.cat, zip(*batches, strict=True))
    assert torch.equal(inputs, INPUTS[: sum(sizes)])
    assert torch.equal(targets, -inputs)


def test_a_loader_that_shuffles_without_batches_is_read_in_order():
    single = list(read_batches(DataLoader(EXAMPLES, None, shuffle=True), None, 16))
    assert [float(inputs) for inputs, _ in single] == INPUTS.tolist()


class Stream(IterableDataset):
    """The same examples, one after the other."""

    def __iter__(self):
        return iter(EXAMPLES)


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize(
    ("examples", "shuffle"), [(EXAMPLES, False), (EXAMPLES, True), (Stream(), False)]
)
def test_reading_a_loader_leaves_the_random_state_alone(examples, shuffle, batch_size):
    """A loader draws a seed for its workers, even if it has none and shuffles nothing."""
    loader = DataLoader(examples, batch_size, shuffle=shuffle)
    before = torch.get_rng_state()
    read = [inputs.reshape(-1) for inputs, _ in read_batches(loader, None, 16)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.cat(read), INPUTS)
