r"""Numbers with a fixed point in the ring of the integers modulo :math:`2^{64}`, and their masks.

.. math:: q_f(x) = \operatorname{round}(2^f x) \bmod 2^{64}

A sum of a number and a uniformly random one of the ring says nothing about the number. Sums and
products of encoded numbers are exact while their true values stay within
:math:`[-2^{63}, 2^{63})`; nothing notices one that does not. The bits after the point are chosen
here, so that nothing that an honest member sends can get there:

- an update has 28 bits and a length below 2**10;
- a vector that the server asks about is scaled to a length in [1/2, 1), and has 24;
- weights are scaled to a sum of 1, and have 24.

.. math::

    \langle u_i, g \rangle = 2^{e - 52} \left(\langle y_i, \hat g \rangle
        - \langle \mathrm{mask}_i, \hat g \rangle \right), \qquad
    \sum_i a_i u_i = a\, 2^{-52} \Big(\sum_i W_i y_i - \sum_i W_i\, \mathrm{mask}_i\Big)

with :math:`\hat g = q_{24}(2^{-e} g)`, e such that :math:`2^{-e} \lVert g \rVert` is in [1/2, 1),
a the sum of the weights and :math:`W_i = q_{24}(a_i / a)`.

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
ROUNDED_BITS = 24
"""Of a product or a sum, that a keeper leaves out."""


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


def encode_vectors(vectors: NDArray[np.floating]) -> tuple[Ring, NDArray[np.int32]]:
    """Return vectors to ask products for, each scaled by a power of two to a length in [1/2, 1).

    Parameters
    ----------
    vectors : ndarray
        ``[j, d]``, finite.

    Returns
    -------
    ndarray
        ``[j, d]`` of uint64.
    ndarray
        ``[j]``, the exponents e that :func:`decode_products` takes back; 0 for a vector of zeros.

    Raises
    ------
    MaskingError
        If a vector is not finite.
    """
    numbers = vectors.astype(np.float64)
    exponents = np.frexp(np.linalg.norm(numbers, axis=1))[1]
    return encode(np.ldexp(numbers, -exponents[:, None]), VECTOR_BITS), exponents


def decode_products(difference: Ring, exponents: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the products ``[m, j]`` of updates with vectors from ``<y, .> - <mask, .>``."""
    return np.ldexp(decode(difference, UPDATE_BITS + VECTOR_BITS), exponents)


def encode_weights(weights: NDArray[np.floating]) -> tuple[Ring, float]:
    """Return weights as shares of their sum, in the ring, and the sum.

    Parameters
    ----------
    weights : ndarray
        ``[m]``, finite, >= 0, with a sum > 0. Each share is rounded to a multiple of 2**-24.

    Raises
    ------
    MaskingError
        If they are not.
    """
    total = float(np.sum(weights, dtype=np.float64))
    if not (np.isfinite(total) and total > 0 and bool(np.all(weights >= 0))):
        raise MaskingError("weights of a masked sum; allowed: finite, >= 0, with a sum > 0")
    return encode(weights.astype(np.float64) / total, WEIGHT_BITS, "the shares"), total


def decode_step(difference: Ring, total: float) -> NDArray[np.float64]:
    """Return ``sum_i a_i u_i`` ``[d]`` from ``sum_i W_i y_i - sum_i W_i mask_i``.

    Parameters
    ----------
    difference : ndarray
        ``[d]`` of uint64.
    total : float
        The weights' sum, of :func:`encode_weights`.
    """
    return decode(difference, UPDATE_BITS + WEIGHT_BITS) * total


def products(vector: Ring, others: Ring) -> Ring:
    """Return the inner products ``[j]`` of ``[d]`` with ``[j, d]``, in the ring."""
    return np.array([np.dot(vector, other) for other in others], np.uint64)


def rounded(answers: Ring) -> Ring:
    """Return a keeper's products, or its sum, without their lowest 24 bits, rounded.

    They are 2**-28 of a vector's length, and of a sum's weights: what an entry of an update is
    rounded by. A server cannot read a parameter off a combination of products with large factors
    modulo 2**64, which would be no combination without: the factors make what was rounded as large
    as the ring. Nor can it read one update off a sum modulo a power of two that all other weights
    are multiples of.
    """
    half, bits = np.uint64(2 ** (ROUNDED_BITS - 1)), np.uint64(ROUNDED_BITS)
    return (answers + half) >> bits << bits
