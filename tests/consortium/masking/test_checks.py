from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.masking.checks import (
    are_lengths_true,
    are_possible,
    check_step,
    check_sum,
    length_tolerance,
)
from fedif_consortium.masking.products import encode_vectors, encode_weights, products, rounded
from fedif_consortium.masking.sketches import SignSketch
from fedif_flower.errors import KeeperError, MaskingError

SEED = bytes(range(32))
LENGTH, MEMBERS = 3_001, 4
LIE = np.uint64(2**36)  # More than what a keeper rounds.


def answers(seed: int = 0) -> dict:
    """Return what an honest keeper of these masks says."""
    rng = np.random.default_rng(seed)
    masks = rng.integers(0, 2**64, (MEMBERS, LENGTH), np.uint64)
    vectors, _ = encode_vectors(rng.normal(size=(2, LENGTH)))
    weights, _ = encode_weights(rng.random(MEMBERS))
    sketch = SignSketch(SEED, 64, LENGTH)
    return {
        "total": rounded(np.sum(weights[:, None] * masks, axis=0)),
        "weights": weights,
        "sketch": sketch,
        "sketches": np.array([sketch.of(mask) for mask in masks]),
        "vectors": vectors,
        "answers": rounded(np.array([products(mask, vectors) for mask in masks])),
    }


def test_an_honest_keeper_passes():
    check_sum(**answers())


@given(st.integers(0, LENGTH - 1), st.integers(2**36, 2**64 - 2**36))
def test_a_lie_in_one_place_is_noticed(place, by):
    said = answers()
    said["total"][place : place + 1] += np.uint64(by)
    with pytest.raises(KeeperError, match="contradicts its sketches"):
        check_sum(**said)


@pytest.mark.parametrize(
    ("lie", "against"),
    [
        (lambda said: said | {"total": ~said["total"]}, "sketches"),
        (lambda said: said | {"total": np.zeros_like(said["total"])}, "sketches"),
        (lambda said: said | {"sketches": said["sketches"] + LIE}, "sketches"),
        (lambda said: said | {"answers": said["answers"] + LIE}, "produ"),
        (lambda said: said | {"weights": said["weights"][::-1]}, "sketches"),
    ],
)
def test_lies_elsewhere_are_noticed(lie, against):
    with pytest.raises(KeeperError, match=f"the keeper's sum .*{against}"):
        check_sum(**lie(answers()))


def test_a_stated_length_within_the_sketchs_error_is_believed():
    assert length_tolerance(1250) == 0.1
    stated = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, np.nan, np.inf, -1.0])
    estimated = np.array([1.09, 0.91, 1.11, 0.89, 0.0, 1e-9, 1.0, 1.0, 1.0])
    expected = [True, True, False, False, True, False, False, False, False]
    assert are_lengths_true(stated, estimated, 1250).tolist() == expected


def test_a_product_is_at_most_the_lengths_product():
    scores = np.array([[6.0, -2.0], [6.1, 0.0], [0.0, -2.1], [np.nan, 0.0]])
    lengths, norms = np.array([2.0, 2.0, 2.0, 2.0]), np.array([3.0, 1.0])
    assert are_possible(scores, lengths, norms).tolist() == [True, False, False, False]


def test_a_step_is_at_most_as_long_as_its_updates():
    weights, lengths = np.array([0.5, 0.5]), np.array([1.0, 3.0])
    check_step(np.array([0.0, 2.0]), weights, lengths)
    for step in ([0.0, 2.1], [2048.0, 0.0], [np.nan, 0.0]):
        with pytest.raises(MaskingError, match=r"the masked sum has length .* allow 2"):
            check_step(np.array(step), weights, lengths)
