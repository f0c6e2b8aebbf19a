from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedif_consortium.masking import ring
from fedif_consortium.masking.ring import UPDATE_BITS, SignSketch, decode, encode
from fedif_flower.errors import MaskingError

NUMBERS = st.floats(-1000, 1000, width=32)
SEED = bytes(range(32))


def test_a_point_by_hand():
    found = encode(np.array([0.0, 1.0, -1.0, 0.75, -0.25]), 2)
    assert found.tolist() == [0, 4, 2**64 - 4, 3, 2**64 - 1]
    assert decode(found, 2).tolist() == [0.0, 1.0, -1.0, 0.75, -0.25]


@given(arrays(np.float32, st.integers(0, 20), elements=NUMBERS), st.integers(0, 40))
def test_decoding_gives_back_up_to_half_a_unit(vector, bits):
    assert np.all(np.abs(decode(encode(vector, bits), bits) - vector) <= 2.0 ** -(bits + 1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**35, -(2.0**35), 1e300])
def test_what_does_not_fit_never_wraps(value):
    with pytest.raises(MaskingError, match=r"not finite, or not below 2\*\*35"):
        encode(np.array([1.0, 0.0, value]), 28)


def test_masks_are_chacha20s():
    # RFC 8439, appendix A.1, test vector 1: key, nonce and counter are zero.
    known = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert ring.to_bytes(ring.mask_of(bytes(32), 4)) == known


def test_products_by_hand():
    update = encode(np.array([1.0, -2.0, 0.5]), UPDATE_BITS)
    vector, exponent = ring.encode_vector(np.array([4.0, 1.0, 0.0]))
    assert exponent == 3  # sqrt(17) / 8 is in [1/2, 1).
    assert vector.tolist() == [2**23, 2**21, 0]
    assert ring.decode_products(ring.products(vector, [update]), exponent).tolist() == [2.0]
    assert ring.encode_vector(np.zeros(3))[1] == 0


@given(
    st.integers(1, 40), st.floats(1e-3, 900), st.floats(1e-30, 1e30), st.integers(0, 2**32)
)  # fmt: skip
def test_products_against_float64(length, update_norm, vector_norm, seed):
    update, vector = np.random.default_rng(seed).normal(size=(2, length))
    update *= update_norm / np.linalg.norm(update)
    vector *= vector_norm / np.linalg.norm(vector)
    encoded, exponent = ring.encode_vector(vector)
    (found,) = ring.decode_products(ring.products(encoded, [encode(update, 28)]), exponent)
    # Half a unit of the last bit of each entry of either, and float64's own rounding.
    allowed = np.sqrt(length) * (2.0**-24 * update_norm + 2.0**-28) + 1e-14 * update_norm
    assert abs(found - vector @ update) <= allowed * vector_norm


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_product_there_can_be_does_not_wrap(sign):
    longest = sign * np.nextafter(ring.LONGEST, 0)
    vector, exponent = ring.encode_vector(np.array([np.nextafter(1.0, 0)]))
    found = ring.products(vector, [encode(np.array([longest]), UPDATE_BITS)])
    assert ring.decode_products(found, exponent)[0] == pytest.approx(longest)


@given(st.integers(0, 2**64 - 1))
def test_a_keepers_rounding_is_half_a_unit_of_its_last_bit(value):
    (found,) = ring.rounded(np.array([value], np.uint64)).tolist()
    assert found % 2**24 == 0
    assert (found - value + 2**23) % 2**64 <= 2**24


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=6).filter(sum))
def test_weights_are_shares_of_their_sum(weights):
    encoded, total = ring.encode_weights(np.array(weights))
    shares = encoded / 2.0**24
    assert total == pytest.approx(sum(weights))
    assert np.all(np.abs(shares - np.array(weights) / sum(weights)) <= 2.0**-25 + 1e-15)


def test_a_step_by_hand():
    updates = np.array([encode(np.array(row), UPDATE_BITS) for row in ([1.0, -4.0], [3.0, 8.0])])
    weights, total = ring.encode_weights(np.array([3.0, 1.0]))
    assert (weights.tolist(), total) == ([3 * 2**22, 2**22], 4.0)
    step = ring.decode_step(np.sum(weights[:, None] * updates, axis=0), total)
    assert step.tolist() == [6.0, -4.0]


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -0.1], [np.nan, 1.0], [np.inf, 1.0]])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(MaskingError, match="allowed: finite, >= 0, with a sum > 0"):
        ring.encode_weights(np.array(weights))


# -- sketches


def random(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_sketches_are_linear_in_the_ring(length, size, factor):
    sketch = SignSketch(SEED, min(size, length), length)
    one, other = random(length, 1), random(length, 2)
    both = sketch.of(one * np.uint64(factor) + other)
    assert np.array_equal(both, sketch.of(one) * np.uint64(factor) + sketch.of(other))


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(np.random.default_rng(1).normal(size=20_000), id="spread"),
        # All of it within the 40 neighbours that buckets of consecutive entries would join.
        pytest.param(np.pad(np.ones(40), (500, 19_460)), id="in one place"),
        pytest.param(np.eye(1, 20_000, 77)[0], id="one entry"),
    ],
)
def test_lengths_within_their_standard_error(vector):
    encoded, rng = encode(vector, UPDATE_BITS), np.random.default_rng(0)
    sketches = [SignSketch(rng.bytes(32), 128, 20_000).of(encoded) for _ in range(200)]
    lengths = np.linalg.norm(decode(np.array(sketches), UPDATE_BITS), axis=1)
    ratios, standard_error = lengths / np.linalg.norm(vector), 1 / np.sqrt(2 * 128)
    assert abs(np.mean(ratios) - 1) < 4 * standard_error / np.sqrt(200) + standard_error**2
    assert np.std(ratios) < 1.3 * standard_error


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 2**32))
def test_what_is_beside_the_sketch_has_none(length, size, seed):
    sketch = SignSketch(SEED, min(size, length), length)
    vector = np.random.default_rng(seed).integers(-1000, 1000, length).astype(float)
    rest = sketch.without(vector)
    scaled = np.rint(rest * 2**20).astype(np.int64)
    assert np.all(np.abs(sketch.of(scaled.view(np.uint64)).view(np.int64)) <= length)
    # Its part in the sketch is a combination of the sketch's sums: at right angles to the rest.
    assert abs(float(np.dot(vector - rest, rest))) <= 1e-9 * float(np.dot(vector, vector))
