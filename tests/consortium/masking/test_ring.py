from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedif_consortium.masking.ring import (
    LONGEST,
    UPDATE_BITS,
    decode,
    decode_products,
    decode_step,
    encode,
    encode_vectors,
    encode_weights,
    mask_of,
    products,
    rounded,
    to_bytes,
)
from fedif_flower.errors import MaskingError

NUMBERS = st.floats(-1000, 1000, width=32)


def test_a_point_by_hand():
    ring = encode(np.array([0.0, 1.0, -1.0, 0.75, -0.25]), 2)
    assert ring.tolist() == [0, 4, 2**64 - 4, 3, 2**64 - 1]
    assert decode(ring, 2).tolist() == [0.0, 1.0, -1.0, 0.75, -0.25]


@given(arrays(np.float32, st.integers(0, 20), elements=NUMBERS), st.integers(0, 40))
def test_decoding_gives_back_up_to_half_a_unit(vector, bits):
    assert np.all(np.abs(decode(encode(vector, bits), bits) - vector) <= 2.0 ** -(bits + 1))


@given(
    arrays(np.float32, 3, elements=NUMBERS),
    arrays(np.float32, 3, elements=NUMBERS),
    arrays(np.uint64, 3, elements=st.integers(0, 2**64 - 1)),
)
def test_sums_are_exact_under_any_mask(one, other, mask):
    a, b = encode(one, 28), encode(other, 28)
    assert np.array_equal((a + mask) + (b - mask), a + b)
    assert np.array_equal(decode(a + b, 28), decode(a, 28) + decode(b, 28))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**35, -(2.0**35), 1e300])
def test_what_does_not_fit_is_named_and_never_wraps(value):
    with pytest.raises(MaskingError, match=r"^the update has .* at place 2; allowed: .*35"):
        encode(np.array([1.0, 0.0, value]), 28, "the update")


def test_masks_are_chacha20s():
    # RFC 8439, appendix A.1, test vector 1: key, nonce and counter are zero.
    known = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert to_bytes(mask_of(bytes(32), 4)) == known


def test_products_by_hand():
    update = encode(np.array([1.0, -2.0, 0.5]), UPDATE_BITS)
    vectors, exponents = encode_vectors(np.array([[4.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    assert exponents.tolist() == [3, 0]  # sqrt(17) / 8 is in [1/2, 1).
    assert vectors[0].tolist() == [2**23, 2**21, 0]
    assert decode_products(products(update, vectors)[None], exponents).tolist() == [[2.0, 0.0]]


@given(
    st.integers(1, 40), st.integers(0, 3), st.floats(1e-3, 900), st.floats(1e-30, 1e30),
    st.integers(0, 2**32),
)  # fmt: skip
def test_products_against_float64(length, count, update_norm, vector_norm, seed):
    rng = np.random.default_rng(seed)
    update = rng.normal(size=length)
    update *= update_norm / np.linalg.norm(update)
    vectors = rng.normal(size=(count, length))
    vectors *= vector_norm / np.linalg.norm(vectors, axis=1, keepdims=True)
    encoded, exponents = encode_vectors(vectors)
    found = decode_products(products(encode(update, UPDATE_BITS), encoded)[None], exponents)[0]
    # Half a unit of the last bit of each entry of either, and float64's own rounding.
    allowed = np.sqrt(length) * (2.0**-24 * update_norm + 2.0**-28) + 1e-14 * update_norm
    assert np.all(np.abs(found - vectors @ update) <= allowed * vector_norm)


def test_the_largest_product_there_can_be_does_not_wrap():
    longest = np.nextafter(LONGEST, 0)
    vectors, exponents = encode_vectors(np.array([[np.nextafter(1.0, 0)]]))
    for sign in (1, -1):
        ring = products(encode(np.array([sign * longest]), UPDATE_BITS), vectors)
        assert decode_products(ring[None], exponents)[0, 0] == pytest.approx(sign * longest)


@given(st.integers(0, 2**64 - 1))
def test_a_keepers_rounding_is_half_a_unit_of_its_last_bit(value):
    (found,) = rounded(np.array([value], np.uint64)).tolist()
    assert found % 2**24 == 0
    assert (found - value + 2**23) % 2**64 <= 2**24


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=6).filter(sum))
def test_weights_are_shares_of_their_sum(weights):
    ring, total = encode_weights(np.array(weights))
    shares = ring / 2.0**24
    assert total == pytest.approx(sum(weights))
    assert np.all(np.abs(shares - np.array(weights) / sum(weights)) <= 2.0**-25 + 1e-15)


def test_a_step_by_hand():
    updates = np.array([encode(np.array(row), UPDATE_BITS) for row in ([1.0, -4.0], [3.0, 8.0])])
    weights, total = encode_weights(np.array([3.0, 1.0]))
    assert (weights.tolist(), total) == ([3 * 2**22, 2**22], 4.0)
    step = decode_step(np.sum(weights[:, None] * updates, axis=0), total)
    assert step.tolist() == [6.0, -4.0]


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -0.1], [np.nan, 1.0], [np.inf, 1.0]])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(MaskingError, match="allowed: finite, >= 0, with a sum > 0"):
        encode_weights(np.array(weights))
