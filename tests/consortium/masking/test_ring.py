from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedif_consortium.masking.ring import BLOCK, decode, encode
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


@pytest.mark.parametrize("place", [0, 7, BLOCK - 1, BLOCK, BLOCK + 3])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**35, -(2.0**35), 1e300])
def test_what_does_not_fit_is_named_and_never_wraps(place, value):
    vector = np.zeros(BLOCK + 4)
    vector[place] = value
    with pytest.raises(MaskingError, match=rf"^the update has .* at place {place}; allowed: .*35"):
        encode(vector, 28, "the update")
