from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.masking.masks import add_mask, mask_blocks

SEED = bytes(range(32))


def test_the_stream_is_chacha20s():
    # RFC 8439, appendix A.1, test vector 1: key, nonce and counter are zero.
    known = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    (block,) = mask_blocks(bytes(32), 4)
    assert block.tolist() == [int.from_bytes(known[i : i + 8], "little") for i in range(0, 32, 8)]


@given(st.integers(0, 200), st.integers(1, 70))
def test_the_block_does_not_change_the_mask(length, block):
    whole = np.concatenate([np.empty(0, np.uint64), *mask_blocks(SEED, length, 4096)])
    parts = list(mask_blocks(SEED, length, block))
    assert len(whole) == length
    assert all(len(part) == block for part in parts[:-1])
    assert np.array_equal(np.concatenate([np.empty(0, np.uint64), *parts]), whole)


def test_a_mask_is_uniform_and_another_seeds_is_another():
    length = 100_003
    vector = np.zeros(length, np.uint64)
    add_mask(vector, SEED)
    # Each of 64 bits is set in half of the entries, up to 6 standard errors.
    ones = [int(np.sum((vector >> np.uint64(bit)) & np.uint64(1))) for bit in range(64)]
    assert max(abs(count - length / 2) for count in ones) < 6 * np.sqrt(length) / 2
    other = np.zeros(length, np.uint64)
    add_mask(other, SEED[::-1])
    assert not np.any(vector == other)
