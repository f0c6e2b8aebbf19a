r"""Numbers with a fixed point in the ring of the integers modulo :math:`2^{64}`, and their masks.

.. math:: q_f(x) = \operatorname{round}(2^f x) \bmod 2^{64}

A sum of a number and a uniformly random one of the ring says nothing about the number. Sums and
products of encoded numbers are exact while their true values stay within
:math:`[-2^{63}, 2^{63})`; nothing notices one that does not. The bits after the point are chosen
here, so that nothing that an honest member sends can get there:

- an update has 28 bits and a length below 2**10;
- a vector that the server asks about is scaled to a length in [1/2, 1), and has 24;
- weights are scaled to a sum of 1, and have 24.

So by Cauchy-Schwarz an inner product is below :math:`2^{10} \cdot 2^{28 + 24} = 2^{62}`, and so is
an entry of a weighted sum, both up to rounding, which takes less than a factor of 2 for up to
:math:`2^{40}` parameters and :math:`2^{24}` members.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fedif_flower.errors import MaskingError

Ring = NDArray[np.uint64]
"""Elements of the ring; all operations of NumPy on them are modulo 2**64."""
UPDATE_BITS = 28
"""Bits after the point of an update."""
VECTOR_BITS = 24
WEIGHT_BITS = 24
LONGEST = 2.0**10
"""What an update's length must stay below."""
SEED_BYTES = 32


def encode(vector: NDArray[np.floating], bits: int, name: str = "the vector") -> Ring:
    """Return numbers as elements of the ring.

    Parameters
    ----------
    vector : ndarray
        Of any shape, finite, with ``|x| < 2**(63 - bits)``.
    bits : int
        f, the bits after the point, >= 0.
    name : str
        What an error calls the vector.

    Raises
    ------
    MaskingError
        Naming the first entry that does not fit. Nothing is ever wrapped or clipped.
    """
    with np.errstate(over="ignore"):  # What is too large for float64 is so for the ring.
        scaled = np.rint(vector.astype(np.float64) * 2.0**bits)
    fits = np.abs(scaled) < 2.0**63  # False for NaN.
    if not fits.all():
        place = int(np.argmin(fits))
        raise MaskingError(
            f"{name} has {vector.flat[place]:g} at place {place}; allowed: finite numbers below "
            f"2**{63 - bits} in size"
        )
    return scaled.astype(np.int64).view(np.uint64)


def decode(ring: Ring, bits: int) -> NDArray[np.float64]:
    """Return elements of the ring as numbers in ``[-2**(63 - bits), 2**(63 - bits))``.

    The inverse of :func:`encode` up to half a unit of the last bit, and up to what float64 rounds.
    """
    return np.multiply(ring.view(np.int64), 2.0**-bits, dtype=np.float64)


def key_stream(seed: bytes, num_bytes: int) -> bytes:
    """Return the key stream of ChaCha20 for a seed of 32 bytes, which is used for nothing else."""
    cipher = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None)
    return cipher.encryptor().update(bytes(num_bytes))


def mask_of(seed: bytes, length: int) -> Ring:
    """Return the mask ``[length]`` of a seed of 32 bytes."""
    return to_ring(key_stream(seed, 8 * length))


def to_bytes(ring: Ring) -> bytes:
    """Return elements of the ring as they travel: 8 bytes each, little-endian."""
    return ring.astype("<u8", copy=False).tobytes()


def to_ring(content: bytes) -> Ring:
    """Return the elements that :func:`to_bytes` wrote."""
    return np.frombuffer(content, "<u8").astype(np.uint64, copy=False)
