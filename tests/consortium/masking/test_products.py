from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.masking.products import (
    decode_products,
    decode_step,
    encode_vectors,
    encode_weights,
    products,
    rounded,
)
from fedif_consortium.masking.ring import LONGEST, UPDATE_BITS, encode
from fedif_flower.errors import MaskingError

SEED = bytes(range(32))


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


@given(st.integers(0, 2**64 - 1))
def test_a_keepers_rounding_is_half_a_unit_of_its_last_bit(value):
    (found,) = rounded(np.array([value], np.uint64)).tolist()
    assert found % 2**24 == 0
    assert (found - value + 2**23) % 2**64 <= 2**24


def test_the_largest_product_there_can_be_does_not_wrap():
    longest = np.nextafter(LONGEST, 0)
    ends = np.array([np.nextafter(1.0, 0)])
    vectors, exponents = encode_vectors(ends[None])
    for sign in (1, -1):
        ring = products(encode(np.array([sign * longest]), UPDATE_BITS), vectors)
        assert decode_products(ring[None], exponents)[0, 0] == pytest.approx(sign * longest)


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


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0], [1.0, -0.1], [np.nan, 1.0], [np.inf, 1.0], [-1.0, -1.0]]
)
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(MaskingError, match="allowed: finite, >= 0, with a sum > 0"):
        encode_weights(np.array(weights))
