"""Masks: the key stream of ChaCha20 for a seed, as elements of the ring."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedif_consortium.masking.ring import BLOCK, Ring
from fedif_flower.errors import MaskingError

SEED_BYTES = 32


def stream(seed: bytes, num_bytes: int, block: int) -> Iterator[bytes]:
    """Yield a seed's key stream in pieces of ``block`` bytes; a seed is used for one stream only.

    Raises
    ------
    MaskingError
        If the seed has another length than 32 bytes.
    """
    if len(seed) != SEED_BYTES:
        raise MaskingError(f"a seed has {len(seed)} bytes; allowed: {SEED_BYTES}")
    zeros = bytes(min(block, num_bytes))
    cipher = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    for start in range(0, num_bytes, block):
        yield cipher.update(zeros[: num_bytes - start])


def mask_blocks(seed: bytes, length: int, block: int = BLOCK) -> Iterator[Ring]:
    """Yield a mask in blocks, so that a mask of any length takes the memory of one block.

    Parameters
    ----------
    seed : bytes
        32 bytes, secret and random.
    length : int
        d, >= 0.
    block : int
        Entries of every block but the last, > 0. It does not change the mask.

    Yields
    ------
    ndarray
        ``[block]`` of uint64.
    """
    for piece in stream(seed, 8 * length, 8 * block):
        yield np.frombuffer(piece, "<u8").astype(np.uint64, copy=False)


def add_mask(vector: Ring, seed: bytes) -> None:
    """Add a seed's mask to a vector ``[d]``, in place."""
    start = 0
    for block in mask_blocks(seed, len(vector)):
        vector[start : start + len(block)] += block
        start += len(block)
