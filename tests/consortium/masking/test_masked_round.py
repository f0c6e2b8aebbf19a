"""What a server checks before it believes members and keeper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.masking.masked_round import (
    are_lengths_true,
    are_possible,
    check_product,
    check_sketches,
    check_step,
    length_tolerance,
)
from fedif_consortium.masking.ring import encode_vectors, encode_weights, products, rounded
from fedif_consortium.masking.sketches import SignSketch
from fedif_flower.errors import KeeperError, MaskingError

LENGTH, MEMBERS = 3_001, 4
LIE = np.uint64(2**36)  # More than what a keeper rounds.
RNG = np.random.default_rng(0)
MASKS = RNG.integers(0, 2**64, (MEMBERS, LENGTH), np.uint64)
WEIGHTS = encode_weights(RNG.random(MEMBERS))[0]
VECTOR = encode_vectors(RNG.normal(size=(1, LENGTH)))[0][0]
SKETCH = SignSketch(bytes(range(32)), 64, LENGTH)
# What an honest keeper of these masks says.
TOTAL = rounded(np.sum(WEIGHTS[:, None] * MASKS, axis=0))
SKETCHES = np.array([SKETCH.of(mask) for mask in MASKS])
ANSWER = rounded(products(VECTOR, MASKS))


def test_an_honest_keeper_passes():
    check_sketches(TOTAL, WEIGHTS, SKETCH, SKETCHES)
    check_product(TOTAL, WEIGHTS, VECTOR, ANSWER)


@given(st.integers(0, LENGTH - 1), st.integers(2**36, 2**64 - 2**36))
def test_a_lie_in_one_place_is_noticed(place, by):
    total = TOTAL.copy()
    total[place : place + 1] += np.uint64(by)
    with pytest.raises(KeeperError, match="contradicts its sketches"):
        check_sketches(total, WEIGHTS, SKETCH, SKETCHES)


@pytest.mark.parametrize(
    ("total", "weights", "sketches"),
    [
        (~TOTAL, WEIGHTS, SKETCHES),
        (np.zeros_like(TOTAL), WEIGHTS, SKETCHES),
        (TOTAL, WEIGHTS, SKETCHES + LIE),
        (TOTAL, WEIGHTS[::-1], SKETCHES),
    ],
)
def test_lies_elsewhere_are_noticed(total, weights, sketches):
    with pytest.raises(KeeperError, match="contradicts its sketches"):
        check_sketches(total, weights, SKETCH, sketches)


def test_a_lie_of_a_product_is_noticed():
    with pytest.raises(KeeperError, match="contradicts its products"):
        check_product(TOTAL, WEIGHTS, VECTOR, ANSWER + LIE)


def test_a_stated_length_within_the_sketchs_error_is_believed():
    assert length_tolerance(1250) == 0.1
    stated = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    estimated = np.array([1.09, 0.91, 1.11, 0.89, 0.0, 1e-9])
    expected = [True, True, False, False, True, False]
    assert are_lengths_true(stated, estimated, 1250).tolist() == expected


def test_a_product_is_at_most_the_lengths_product():
    scores, lengths = np.array([6.0, 6.1, -6.1, np.nan]), np.full(4, 2.0)
    assert are_possible(scores, lengths, 3.0).tolist() == [True, False, False, False]


def test_a_step_is_at_most_as_long_as_its_updates():
    weights, lengths = np.array([0.5, 0.5]), np.array([1.0, 3.0])
    check_step(np.array([0.0, 2.0]), weights, lengths)
    for step in ([0.0, 2.1], [2048.0, 0.0], [np.nan, 0.0]):
        with pytest.raises(MaskingError, match=r"the masked sum has length .* allow 2"):
            check_step(np.array(step), weights, lengths)
