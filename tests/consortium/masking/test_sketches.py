from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.masking.ring import UPDATE_BITS, encode
from fedif_consortium.masking.sketches import SignSketch, estimated_lengths

SEED = bytes(range(32))


def ring(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


@pytest.mark.parametrize(
    ("size", "length"),
    [(1, 1), (1, 70), (5, 5), (5, 63), (64, 64), (64, 65), (64, 1000), (500, 200_000)],
)
def test_every_entry_is_in_one_bucket_with_one_sign(size, length):
    sketch = SignSketch(SEED, size, length)
    units = np.random.default_rng(1).choice(length, min(length, 70), replace=False)
    for place in units:
        unit = np.zeros(length, np.uint64)
        unit[place] = 1
        found = sketch.of(unit)
        assert sorted(set(found.tolist()) - {0}) in ([1], [2**64 - 1])
        assert np.count_nonzero(found) == 1


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_sketches_are_linear_in_the_ring(length, size, factor):
    sketch = SignSketch(SEED, min(size, length), length)
    one, other = ring(length, 1), ring(length, 2)
    both = sketch.of(one * np.uint64(factor) + other)
    assert np.array_equal(both, sketch.of(one) * np.uint64(factor) + sketch.of(other))


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda rng: rng.normal(size=20_000), id="spread"),
        # All of it within the 40 neighbours that buckets of consecutive entries would join.
        pytest.param(lambda rng: np.pad(rng.normal(size=40), (500, 19_460)), id="in one place"),
        pytest.param(lambda rng: np.eye(1, 20_000, 77)[0], id="one entry"),
    ],
)
def test_lengths_within_their_standard_error(shape):
    rng = np.random.default_rng(0)
    vector = encode(shape(rng), UPDATE_BITS)
    true = np.linalg.norm(shape(np.random.default_rng(0)))
    seeds = [rng.bytes(32) for _ in range(200)]
    sketches = np.array([SignSketch(seed, 128, len(vector)).of(vector) for seed in seeds])
    ratios = estimated_lengths(sketches) / true
    standard_error = 1 / np.sqrt(2 * 128)
    assert abs(np.mean(ratios) - 1) < 4 * standard_error / np.sqrt(200) + standard_error**2
    assert np.std(ratios) < 1.3 * standard_error


def test_the_length_of_nothing_is_zero_and_of_a_wrong_mask_is_huge():
    sketch = SignSketch(SEED, 64, 1000)
    zeros, random = sketch.of(np.zeros(1000, np.uint64)), sketch.of(ring(1000))
    short, long = estimated_lengths(np.array([zeros, random]))
    assert short == 0
    assert long > 1e10


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 2**32))
def test_what_is_beside_the_sketch_has_none(length, size, seed):
    sketch = SignSketch(SEED, min(size, length), length)
    vector = np.random.default_rng(seed).integers(-1000, 1000, length).astype(float)
    rest = sketch.without(vector)
    scaled = np.rint(rest * 2**20).astype(np.int64)
    assert np.all(np.abs(sketch.of(scaled.view(np.uint64)).view(np.int64)) <= length)
    # Its part in the sketch is a combination of the sketch's sums: at right angles to the rest.
    assert abs(float(np.dot(vector - rest, rest))) <= 1e-9 * float(np.dot(vector, vector))
