r"""Fixed-point numbers in the ring of integers modulo :math:`2^{64}`, masks, and sketches.

A number x is encoded with f bits after the point:

.. math:: q_f(x) = \operatorname{round}(2^f x) \bmod 2^{64}

The sum of an encoded number and a uniformly random element of the ring says nothing about the
number. Sums and products of encoded numbers are exact as long as their true values are within
:math:`[-2^{63}, 2^{63})`. Nothing notices a value outside of it. So the bits after the point are
chosen such that no honest member's values get there:

- an update has 28 bits after the point, and a length below 2**10;
- a vector g that the server asks about is scaled to a length in [1/2, 1), and has 24 bits;
- weights are scaled to a sum of 1, and have 24 bits.

The server computes inner products and weighted sums of updates :math:`u_i` from their masked
vectors :math:`y_i` and from the keeper's answers about the masks:

.. math::

    \langle u_i, g \rangle = 2^{e - 52} \left(\langle y_i, \hat g \rangle
        - \langle \mathrm{mask}_i, \hat g \rangle \right), \qquad
    \sum_i a_i u_i = a\, 2^{-52} \Big(\sum_i W_i y_i - \sum_i W_i\, \mathrm{mask}_i\Big)

with :math:`\hat g = q_{24}(2^{-e} g)`, e such that :math:`2^{-e} \lVert g \rVert` is in [1/2, 1),
a the sum of the weights and :math:`W_i = q_{24}(a_i / a)`.

By the Cauchy-Schwarz inequality, an inner product is below
:math:`2^{10} \cdot 2^{28 + 24} = 2^{62}`, and so is an entry of a weighted sum. Rounding adds less
than a factor of 2 to both for up to :math:`2^{40}` parameters and :math:`2^{24}` members.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fedif_flower.errors import MaskingError

Ring = NDArray[np.uint64]
"""Elements of the ring; all operations of NumPy on them are modulo 2**64."""
UPDATE_BITS = 28
"""Bits after the point of an update."""
VECTOR_BITS = 24
"""Bits after the point of a vector that the server asks about."""
WEIGHT_BITS = 24
"""Bits after the point of a weight."""
LONGEST = 2.0**10
"""The length of an update has to be below this."""
SEED_BYTES = 32
ROUNDED_BITS = 24
"""The number of lowest bits of a product or a sum that a keeper rounds away."""


def encode(vector: NDArray[np.floating], bits: int) -> Ring:
    """Return numbers of any shape as elements of the ring, with ``bits`` after the point.

    Raises
    ------
    MaskingError
        If a number is not finite or too large: none is ever wrapped or clipped.
    """
    with np.errstate(over="ignore"):  # A number that overflows float64 is refused below.
        scaled = np.rint(vector.astype(np.float64) * 2.0**bits)
    if not (np.abs(scaled) < 2.0**63).all():  # A comparison with NaN is false.
        raise MaskingError(f"numbers are not finite, or not below 2**{63 - bits} in size")
    return scaled.astype(np.int64).view(np.uint64)


def decode(ring: Ring, bits: int) -> NDArray[np.float64]:
    """Return elements of the ring as numbers in ``[-2**(63 - bits), 2**(63 - bits))``.

    It is the inverse of :func:`encode`, up to half a unit of the last bit and the rounding of
    float64.
    """
    return np.multiply(ring.view(np.int64), 2.0**-bits, dtype=np.float64)


def key_stream(seed: bytes, num_bytes: int) -> bytes:
    """Return ``num_bytes`` of the key stream of ChaCha20 for a seed of 32 bytes.

    The nonce is always zero, so a seed must be used for one purpose only.
    """
    cipher = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None)
    return cipher.encryptor().update(bytes(num_bytes))


def mask_of(seed: bytes, length: int) -> Ring:
    """Return the mask ``[length]`` that a seed of 32 bytes stands for."""
    return to_ring(key_stream(seed, 8 * length))


def to_bytes(ring: Ring) -> bytes:
    """Return elements of the ring as bytes: 8 bytes each, little-endian."""
    return ring.astype("<u8", copy=False).tobytes()


def to_ring(content: bytes) -> Ring:
    """Return the elements of the ring that :func:`to_bytes` wrote."""
    return np.frombuffer(content, "<u8").astype(np.uint64, copy=False)


def digest(ring: Ring) -> bytes:
    """Return the SHA-256 of elements of the ring, 8 bytes each, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(ring, "<u8").data).digest()


def encode_vector(vector: NDArray[np.floating]) -> tuple[Ring, int]:
    """Encode a vector ``[d]`` with which products are asked for, scaled to a length in [1/2, 1).

    Returns
    -------
    ndarray of uint64, int
        The encoded vector ``[d]``, and the exponent e of its scale 2**-e, which
        :func:`decode_products` needs; e is 0 for zeros.

    Raises
    ------
    MaskingError
        If the vector is not finite.
    """
    vector = vector.astype(np.float64)
    _, exponent = np.frexp(np.linalg.norm(vector))
    scaled = np.ldexp(vector, -int(exponent))
    return encode(scaled, VECTOR_BITS), int(exponent)


def decode_products(difference: Ring, exponent: int) -> NDArray[np.float64]:
    """Return the inner products ``[m]`` of updates with a vector g.

    Parameters
    ----------
    difference : ndarray
        ``[m]`` of uint64: the products of the masked updates with the encoded vector, minus those
        of the masks.
    exponent : int
        e, which :func:`encode_vector` returned for g.
    """
    return np.ldexp(decode(difference, UPDATE_BITS + VECTOR_BITS), exponent)


def encode_weights(weights: NDArray[np.floating]) -> tuple[Ring, float]:
    """Encode weights as shares of their sum.

    Parameters
    ----------
    weights : ndarray
        ``[m]``, finite, >= 0, with a sum > 0.

    Returns
    -------
    ndarray of uint64, float
        The encoded shares ``[m]``, each rounded to a multiple of 2**-24, and the sum of the
        weights.

    Raises
    ------
    MaskingError
        If the weights are not finite, one is below 0, or their sum is 0.
    """
    total = float(np.sum(weights, dtype=np.float64))
    has_sum = np.isfinite(total) and total > 0
    if not has_sum or not np.all(weights >= 0):
        raise MaskingError("weights of a masked sum; allowed: finite, >= 0, with a sum > 0")
    shares = weights.astype(np.float64) / total
    return encode(shares, WEIGHT_BITS), total


def decode_step(difference: Ring, total: float) -> NDArray[np.float64]:
    """Return the weighted sum of updates, ``sum_i a_i u_i`` ``[d]``.

    Parameters
    ----------
    difference : ndarray
        ``[d]`` of uint64: ``sum_i W_i y_i - sum_i W_i mask_i``, with the encoded weights W.
    total : float
        The sum of the weights a, which :func:`encode_weights` returned.
    """
    return decode(difference, UPDATE_BITS + WEIGHT_BITS) * total


def products(vector: Ring, others: Iterable[Ring]) -> Ring:
    """Return the inner products ``[m]``, in the ring, of a vector ``[d]`` with each of m others."""
    return np.array([np.dot(vector, other) for other in others], np.uint64)


def rounded(answers: Ring) -> Ring:
    """Return a keeper's products or its sum, rounded to multiples of 2**24.

    This unit stands for 2**-28 times the length of the vector, or times the sum of the weights: it
    is as small as the unit of an update's entries.

    The rounding keeps a server from attacks that use the modulus 2**64. It could otherwise multiply
    several products by large factors, such that their combination modulo 2**64 is one parameter.
    Such factors make the rounding error as large as the ring. It could also choose weights of which
    all but one are multiples of a power of two. Then the sum modulo this power would tell the
    update of one member.
    """
    bits = np.uint64(ROUNDED_BITS)
    half = np.uint64(2 ** (ROUNDED_BITS - 1))
    return (answers + half) >> bits << bits


class SignSketch:
    r"""Sketches of vectors with d entries: k random sums, linear in a vector, that tell its length.

    .. math::

        \operatorname{Sk}(x)_b = \sum_{j:\, h(j) = b} s_j x_j, \qquad
        \mathbb{E}\Big[\sum_b \operatorname{Sk}(x)_b^2\Big] = \lVert x \rVert^2, \qquad
        \operatorname{Var} \le \tfrac{2}{k} \lVert x \rVert^4

    with k buckets, and a random sign :math:`s_j` and bucket :math:`h(j)` for each entry. Buckets
    are random because a member could put all of its update into one bucket of consecutive entries.

    The relative standard error of a length is :math:`1/\sqrt{2k}`: 4.4 % for k = 256, 2.2 % for
    k = 1,024. This is the count sketch of Charikar, Chen and Farach-Colton (2002), used as in the
    estimate of the second moment by Alon, Matias and Szegedy (1996).

    Parameters
    ----------
    seed : bytes
        32 bytes that members must not know: who knows them can make a long vector look short.
    size : int
        k, the number of buckets, in 1 ... length.
    length : int
        d, the number of a vector's entries, >= 1.

    Attributes
    ----------
    counts : ndarray
        ``[k]``: the number of entries in each bucket.
    """

    def __init__(self, seed: bytes, size: int, length: int) -> None:
        self.size = size
        self.length = length
        # A number b < k stands for bucket b and the sign +1, k + b for bucket b and -1. Draws of 32
        # bits modulo 2k are uniform up to k / 2**31.
        draws = np.frombuffer(key_stream(seed, 4 * length), "<u4") % np.uint32(2 * size)
        self._buckets = draws.astype(np.int32)
        signed_counts = np.bincount(self._buckets, minlength=2 * size)
        self.counts = signed_counts[:size] + signed_counts[size:]

    def of(self, vector: Ring) -> Ring:
        """Return the sketch ``[k]`` of a vector ``[d]``."""
        sums = np.zeros(2 * self.size, np.uint64)
        np.add.at(sums, self._buckets, vector)
        return sums[: self.size] - sums[self.size :]

    def without(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the part of a vector ``[d]`` that is orthogonal to all k sums of the sketch."""
        k = self.size
        sums = np.bincount(self._buckets, vector, minlength=2 * k)
        means = (sums[:k] - sums[k:]) / np.maximum(self.counts, 1)
        signed_means = np.concatenate([means, -means])
        return np.asarray(vector - signed_means[self._buckets])
