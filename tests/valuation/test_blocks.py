"""Blocks of held-out examples."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedif_flower import Validation
from fedif_flower.valuation.parts import block_validations


def held_out(count: int, batch_size: int = 16) -> Validation:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 3, generator=generator)
    targets = torch.arange(count) % 4
    torch.manual_seed(2)
    return Validation(nn.Linear(3, 4), inputs, targets, device="cpu", batch_size=batch_size)


@pytest.mark.parametrize(("count", "blocks"), [(100, 20), (47, 20), (30, 15), (20, 10)])
def test_every_example_is_in_one_block(count, blocks):
    whole = held_out(count)
    found = block_validations(whole)
    assert len(found) == blocks
    assert {block.num_examples for block in found} <= {count // blocks, count // blocks + 1}
    ours = torch.cat([batch.content[0] for block in found for batch in block.batches])
    theirs = torch.cat([batch.content[0] for batch in whole.batches])
    assert sorted(ours.tolist()) == sorted(theirs.tolist())
    params = whole.params()
    mean = sum(block.gradient(params) * block.total_weight / count for block in found)
    torch.testing.assert_close(mean, whole.gradient(params))


def test_too_few_examples_make_no_blocks_and_that_is_said(caplog):
    assert block_validations(held_out(19)) == []
    assert "19 examples can be taken out, not 20" in caplog.text
