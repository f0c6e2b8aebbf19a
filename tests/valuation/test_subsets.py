"""Subsets of a held-out set: at random, in blocks, by class; intervals that follow from blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t
from torch import Tensor, nn

from fedif_flower import Validation
from fedif_flower.attribution.intervals import (
    SplitContribution,
    block_sums,
    half_widths,
    intervals,
    share_half_widths,
)
from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.tasks.rows import first_two, join, take_of_all
from fedif_flower.valuation.subsets import (
    block_validations,
    class_validations,
    draw_batches,
    draw_rows,
)
from tests.valuation.models import build


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_strings_are_drawn_with_their_own_rows():
    batches = [
        {"text": ["a", "b", "c"], "at": torch.arange(3), "units": ["m", "s"]},
        {"text": ["d", "e"], "at": torch.arange(3, 5), "units": ["m", "s"]},
    ]
    pieces = take_of_all(batches, torch.tensor([0, 2, 4]))
    assert [piece["text"] for piece in pieces] == [["a", "c"], ["e"]]
    assert first_two(batches[0])["text"] == ["a", "b"]
    whole = join(batches)
    assert whole["text"] == ["a", "b", "c", "d", "e"]
    assert whole["at"].tolist() == [0, 1, 2, 3, 4]
    assert whole["units"] == ["m", "s"]  # No item for each example of the first batch.


THREE = torch.zeros(3, 5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((THREE, 1.0), (THREE, -3.0)),
        ((THREE, None), (THREE, THREE)),
        ((THREE, 1.0), (THREE, torch.ones(1))),
        ((THREE,), (torch.zeros(3, 7),)),
        ({"x": THREE}, {"x": THREE, "mask": THREE}),
        ([THREE], [THREE, THREE]),
        ((THREE, object()), (THREE, object())),
    ],
)
def test_batches_that_differ_in_more_than_examples_are_not_joined(first, second):
    with pytest.raises(ValuationError, match="differ in more than their examples"):
        join([first, second])


def test_pieces_that_cannot_be_joined_stay_apart():
    """Of two batches, sequences of 5 and of 7, of a class each: each gives one of the two."""
    padded = [(torch.zeros(3, 5), torch.zeros(3).long()), (torch.ones(3, 7), torch.ones(3).long())]
    drawn = draw_batches(padded, 2, generator(0)) or []
    assert [(inputs.shape, labels.tolist()) for inputs, labels in drawn] == [
        ((1, 5), [0]),
        ((1, 7), [1]),
    ]


class Scaled(nn.Module):
    """Classes of inputs ``[n, L, 4]``, of any length, times a number of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, inputs: Tensor, factor: float) -> Tensor:
        return self.linear(inputs.mean(dim=1) * factor)


@pytest.mark.parametrize(
    ("lengths", "factors"), [((5, 7, 9), (1.0, 1.0, 1.0)), ((5, 5, 5), (1.0, -3.0, 1.0))]
)
def test_parts_of_batches_that_differ_have_the_mean_loss_of_the_whole(lengths, factors):
    targets = torch.arange(30) % 3
    batches = [
        (torch.randn(30, length, 4, generator=generator(length)), factor, targets)
        for length, factor in zip(lengths, factors, strict=True)
    ]
    whole = Validation(build(Scaled), batches, device="cpu")
    params = torch.randn(15, generator=generator(0))
    for parts in (block_validations(whole, 4), class_validations(whole)):
        assert sum(part.num_examples for part in parts) == 90
        mean = sum(part.loss(params) * part.total_weight / 90 for part in parts)
        assert mean == pytest.approx(whole.loss(params))
    assert whole.sample(20, generator(0)).num_examples == 20


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.data(), st.integers(0, 2**31))
def test_every_class_gives_its_share(labels, data, seed):
    count = data.draw(st.integers(1, len(labels)))
    for drawing in (generator(seed), np.random.default_rng(seed)):
        rows = draw_rows(torch.tensor(labels), count, drawing).tolist()
        assert rows == sorted(set(rows))
        assert len(rows) == count
        for label in set(labels):
            share = count * labels.count(label) / len(labels)
            assert abs(sum(labels[row] == label for row in rows) - share) < 1


@pytest.mark.parametrize(
    "batches",
    [
        [(torch.zeros(4), torch.zeros(4))],  # No more than is asked for.
        [(torch.zeros(9, 2), torch.zeros(8))],
        [object()],
        [torch.tensor(1.0)],
    ],
)
def test_what_cannot_be_divided_is_left_whole(batches):
    assert draw_batches(batches, 4, generator(0)) is None


def held_out(targets: Tensor) -> Validation:
    inputs = torch.randn(len(targets), 3, generator=generator(1))
    return Validation(build(nn.Linear, 3, 4), inputs, targets, device="cpu", batch_size=16)


def add_up(whole: Validation, parts: list[Validation]) -> None:
    ours = torch.cat([batch.content[0] for part in parts for batch in part.batches])
    theirs = torch.cat([batch.content[0] for batch in whole.batches])
    assert sorted(ours.tolist()) == sorted(theirs.tolist())
    params = whole.params()
    mean = sum(p.gradient(params) * p.total_weight / whole.total_weight for p in parts)
    torch.testing.assert_close(mean, whole.gradient(params))


def test_a_negative_target_of_a_loss_of_one_s_own_is_named():
    def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
        return (1 - outputs[:, 0] * targets).clamp_min(0).mean()

    targets = torch.arange(40) % 2 * 2 - 1
    inputs = torch.randn(40, 3, generator=generator(1))
    signs = Validation(build(nn.Linear, 3, 4), inputs, targets, loss_fn=hinge, device="cpu")
    with pytest.raises(ValuationError, match="has the target -1; contributions by class need"):
        class_validations(signs)


def test_complex_targets_are_no_classes():
    batch = torch.zeros(9, 2), torch.zeros(9, dtype=torch.complex64)
    (drawn,) = draw_batches([batch], 4, generator(0)) or []
    assert len(drawn[1]) == 4


@pytest.mark.parametrize(("count", "blocks"), [(100, 20), (47, 20), (30, 15), (20, 10)])
def test_every_example_is_in_one_block(count, blocks):
    whole = held_out(torch.arange(count) % 4)
    found = block_validations(whole)
    assert len(found) == blocks
    assert {block.num_examples for block in found} <= {count // blocks, count // blocks + 1}
    add_up(whole, found)


def test_every_example_is_in_the_part_of_its_class():
    whole = held_out(torch.arange(60) % 7 % 4)
    found = class_validations(whole)
    for label, part in enumerate(found):
        assert {int(y) for batch in part.batches for y in batch.content[1]} == {label}
    add_up(whole, found)
    with pytest.raises(ValuationError, match=r"no example of the classes \[1\]"):
        class_validations(held_out(torch.arange(40) % 2 * 2))


@pytest.mark.parametrize("blocks", [1, -1, 2.5])
def test_one_block_tells_no_interval_and_is_refused(blocks):
    # What the sum would be without the only block is 0 of 0 examples.
    with pytest.raises(ConfigError, match=f"blocks = {blocks}; allowed: an integer >= 2, or 0"):
        block_validations(held_out(torch.arange(40) % 4), blocks)


@pytest.mark.parametrize(("count", "blocks"), [(19, 20), (3, 2), (3, 5)])
def test_too_few_examples_make_no_blocks_and_that_is_said(caplog, count, blocks):
    assert block_validations(held_out(torch.arange(count) % 4), blocks) == []
    (told,) = caplog.messages
    assert told.endswith(f": there are {count} examples, and at least 20 are needed")


# -- intervals, by hand


HALVES = np.array([0.5, 0.5])


def test_a_jackknife_by_hand():
    # Without a block: 2 * 3 = 6 and 2 * 1 = 2, of a sum of 4: variance (4 + 4) / 2.
    found = half_widths(np.array([[1.0, 0.0], [3.0, 0.0]]), HALVES)
    assert found == pytest.approx([t.ppf(0.975, 1) * 2.0, 0.0])


def test_of_equal_blocks_it_is_the_standard_error_of_a_mean():
    values = np.random.default_rng(0).normal(size=(20, 1))
    expected = t.ppf(0.975, 19) * values.std(ddof=1) / math.sqrt(20)
    assert half_widths(values / 20, np.full(20, 1 / 20)) == pytest.approx([expected])
    # Blocks that differ by their sizes alone tell of no luck.
    weights = np.array([0.2, 0.3, 0.5])
    assert half_widths(5 * weights[:, None], weights) == pytest.approx([0.0], abs=1e-12)


def test_credit_is_split_as_the_contribution_and_a_loss_beyond_it_alike():
    parts = [
        SplitContribution(7, 1.0, 0.5, (0.75, 0.25)),
        SplitContribution(7, 1e-9, -0.5, (0.25, 1e-9 - 0.25)),
    ]
    contributed, credited = block_sums(parts, [7], 2)
    assert contributed.T.tolist() == [pytest.approx([1.0, 0.0], abs=1e-8)]
    assert credited.T.tolist() == [pytest.approx([0.375 + 0.25 - 0.25, 0.125 - 0.25 - 0.25])]


def test_shares_move_by_the_delta_method():
    # Sums 4 and 4: a half each. Blocks (1, 3) and (3, 1): d s = (1 - 2, 3 - 2) / 8.
    blocks = np.array([[1.0, 3.0], [3.0, 1.0]])
    expected = half_widths(np.array([[-1 / 8], [1 / 8]]), HALVES)
    assert share_half_widths(blocks, blocks, HALVES) == pytest.approx([expected[0]] * 2)
    # Who is paid nothing has no width, and whoever has all of the gain is certain.
    one = np.array([[1.0, -1.0], [2.0, -0.5]])
    assert share_half_widths(one, one, HALVES) == pytest.approx([0.0, 0.0])


def test_a_share_moves_with_the_gain_where_not_all_of_it_is_paid():
    """2 of 6 are paid, by equal blocks; without a block the gain is 4 times 2, or 2 times 2.

    It moves by 2 (the root of (4 + 4) / 2), so that the share of 1/3 does by 1/3 of 2 / 6.
    """
    found = share_half_widths(np.array([[1.0], [1.0]]), np.array([[2.0], [4.0]]), HALVES)
    assert found == pytest.approx([t.ppf(0.975, 1) / 9])


def test_intervals_cover():
    generator, weights = np.random.default_rng(3), np.full(20, 1 / 20)
    hits = 0
    for _ in range(400):
        examples = generator.exponential(size=(60, 1)).reshape(20, 3, 1).mean(axis=1) / 20
        hits += abs(float(examples.sum()) - 1.0) <= float(half_widths(examples, weights)[0])
    assert 0.90 <= hits / 400 <= 0.98


def test_a_member_drawn_once_has_a_wide_interval_and_one_drawn_always_a_narrow_one():
    rounds = np.zeros((20, 3))
    rounds[:, 0] = 0.05  # Every round.
    rounds[7, 1] = 1.0  # Once: of 20 rounds 20 / 19 * (1 - 1 / 20) = 1 is the variance.
    assert intervals(rounds) == pytest.approx(
        np.array([[1.0, 1.0], [1 - t.ppf(0.975, 19), 1 + t.ppf(0.975, 19)], [0.0, 0.0]])
    )
    assert intervals(rounds[:4]) is None
