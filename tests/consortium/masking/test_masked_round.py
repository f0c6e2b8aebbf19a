"""What a server checks before it believes members and keeper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.masking import ring
from fedif_consortium.masking.keeper import OpenedRound
from fedif_consortium.masking.masked_round import MaskedRound, length_tolerance
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_flower.errors import KeeperError, MaskingError

LENGTH, MEMBERS = 3_001, 4
LIE = np.uint64(2**36)  # More than what a keeper rounds.
RNG = np.random.default_rng(0)
MASKS = RNG.integers(0, 2**64, (MEMBERS, LENGTH), np.uint64)
WEIGHTS = RNG.random(MEMBERS)
SHARES, VECTOR = ring.encode_weights(WEIGHTS)[0], RNG.normal(size=LENGTH)
SKETCH = ring.SignSketch(bytes(32), 64, LENGTH)


class Honest:
    """What a keeper of these masks says."""

    policy = KeeperPolicy()
    sketches = np.array([SKETCH.of(mask) for mask in MASKS])
    total = ring.rounded(np.sum(SHARES[:, None] * MASKS, axis=0))
    answer = ring.rounded(ring.products(ring.encode_vector(VECTOR)[0], MASKS))

    def products(self, *_):
        return self.answer

    def weighted_sum(self, *_):
        return self.total


def opened(updates=0.0, lengths=0.0, **lies) -> MaskedRound:
    """Return what a server knows of updates of stated lengths by a keeper that tells some lies."""
    keeper = Honest()
    vars(keeper).update(lies)
    packed = ring.to_bytes(keeper.sketches)
    answer = OpenedRound(nodes=(0, 1, 2, 3), refused={}, seed=bytes(32), packed=packed)
    vectors = MASKS + ring.encode(np.zeros_like(MASKS, float) + updates, ring.UPDATE_BITS)
    return MaskedRound(keeper, (1, 1), answer, [*vectors], np.full(MEMBERS, lengths))


def summed(*updates, **lies) -> np.ndarray:
    found = opened(*updates, **lies)
    found.products(torch.from_numpy(VECTOR))
    return found.summed(torch.from_numpy(WEIGHTS)).numpy()


def test_an_honest_keeper_passes():
    assert np.all(np.abs(summed()) < 1e-6)


@given(st.integers(0, LENGTH - 1), st.integers(2**36, 2**64 - 2**36))
def test_a_lie_in_one_place_is_noticed(place, by):
    total = Honest.total.copy()
    total[place : place + 1] += np.uint64(by)
    with pytest.raises(KeeperError, match="contradicts its sketches"):
        summed(total=total)


@pytest.mark.parametrize(
    ("lies", "contradicted"),
    [
        ({"total": ~Honest.total}, "sketches"),
        ({"total": np.zeros_like(Honest.total)}, "sketches"),
        ({"total": np.sum(SHARES[::-1, None] * MASKS, axis=0)}, "sketches"),
        ({"sketches": Honest.sketches + LIE}, "sketches"),
        ({"answer": Honest.answer + LIE}, "products"),
    ],
)
def test_lies_elsewhere_are_noticed(lies, contradicted):
    with pytest.raises(KeeperError, match=f"contradicts its {contradicted}"):
        summed(**lies)


def test_a_stated_length_within_the_sketchs_error_is_believed():
    assert length_tolerance(1250) == 0.1
    found = opened(lengths=1.0)  # By 64 sums: 0.442.
    found.sketches = np.array([[1.44], [0.56], [1.45], [0.55]])
    assert sorted(found.untrue()) == [2, 3]


ALONG = VECTOR / np.linalg.norm(VECTOR)
BESIDE = ALONG[::-1] - ALONG[::-1] @ ALONG * ALONG


@pytest.mark.parametrize(
    ("direction", "reason"),
    [(ALONG, "a product is larger"), (BESIDE, "the masked sum has length .*, and its updates all")],
)
def test_a_product_and_a_step_are_at_most_as_long_as_stated(direction, reason):
    one = direction / np.linalg.norm(direction)
    assert summed(1.44 * one, 1.0) == pytest.approx(1.44 * WEIGHTS.sum() * one, abs=1e-5)
    with pytest.raises(MaskingError, match=reason):
        summed(1.45 * one, 1.0)
