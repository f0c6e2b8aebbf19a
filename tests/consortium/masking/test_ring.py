from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedif_consortium.masking.ring import decode, encode, mask_of, to_bytes
from fedif_flower.errors import MaskingError

NUMBERS = st.floats(-1000, 1000, width=32)


def test_a_point_by_hand():
    ring = encode(np.array([0.0, 1.0, -1.0, 0.75, -0.25]), 2)
    assert ring.dtype == np.uint64
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


def test_a_mask_is_uniform_and_another_seeds_is_another():
    length, seed = 100_003, bytes(range(32))
    mask = mask_of(seed, length)
    # Each of 64 bits is set in half of the entries, up to 6 standard errors.
    ones = [int(np.sum((mask >> np.uint64(bit)) & np.uint64(1))) for bit in range(64)]
    assert max(abs(count - length / 2) for count in ones) < 6 * np.sqrt(length) / 2
    assert not np.any(mask == mask_of(seed[::-1], length))
