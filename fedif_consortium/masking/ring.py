r"""Numbers with a fixed point in the ring of the integers modulo :math:`2^{64}`; masks, sketches.

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
"""What an update's length must stay below."""
SEED_BYTES = 32
ROUNDED_BITS = 24
"""The lowest bits of a product or a sum, which a keeper leaves out."""


def encode(vector: NDArray[np.floating], bits: int) -> Ring:
    """Return numbers, of any shape, as elements of the ring with ``bits`` after the point.

    Raises
    ------
    MaskingError
        If one does not fit: nothing is ever wrapped or clipped.
    """
    with np.errstate(over="ignore"):  # What is too large for float64 is so for the ring.
        scaled = np.rint(vector.astype(np.float64) * 2.0**bits)
    if not (np.abs(scaled) < 2.0**63).all():  # False for NaN.
        raise MaskingError(f"numbers are not finite, or not below 2**{63 - bits} in size")
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


def digest(ring: Ring) -> bytes:
    """Return the SHA-256 of elements of the ring, 8 bytes each, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(ring, "<u8").data).digest()


def encode_vector(vector: NDArray[np.floating]) -> tuple[Ring, int]:
    """Return a vector ``[d]`` to ask products for, scaled to a length in [1/2, 1), and e.

    Its scale is the power of two 2**-e, which :func:`decode_products` takes back; e is 0 for zeros.

    Raises
    ------
    MaskingError
        If it is not finite.
    """
    vector = vector.astype(np.float64)
    _, exponent = np.frexp(np.linalg.norm(vector))
    scaled = np.ldexp(vector, -int(exponent))
    return encode(scaled, VECTOR_BITS), int(exponent)


def decode_products(difference: Ring, exponent: int) -> NDArray[np.float64]:
    """Return the products ``[m]`` of updates with a vector from ``<y, .> - <mask, .>``."""
    return np.ldexp(decode(difference, UPDATE_BITS + VECTOR_BITS), exponent)


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
    has_sum = np.isfinite(total) and total > 0
    if not has_sum or not np.all(weights >= 0):
        raise MaskingError("weights of a masked sum; allowed: finite, >= 0, with a sum > 0")
    shares = weights.astype(np.float64) / total
    return encode(shares, WEIGHT_BITS), total


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


def products(vector: Ring, others: Iterable[Ring]) -> Ring:
    """Return the inner products ``[m]`` of ``[d]`` with each of m, in the ring."""
    return np.array([np.dot(vector, other) for other in others], np.uint64)


def rounded(answers: Ring) -> Ring:
    """Return a keeper's products, or its sum, without their lowest 24 bits, rounded.

    These bits are 2**-28 of a vector's length, or of a sum's weights: as much as an entry of an
    update is rounded by. Without them, a server cannot use what large factors do modulo 2**64. It
    cannot read a parameter off a combination of products that would be none without the modulus,
    since the factors make what was rounded as large as the ring. Nor can it read one update off a
    sum modulo a power of two of which all other weights are multiples.
    """
    bits = np.uint64(ROUNDED_BITS)
    half = np.uint64(2 ** (ROUNDED_BITS - 1))
    return (answers + half) >> bits << bits


class SignSketch:
    r"""Sketches vectors of one length: a few random sums, linear in a vector, that tell its length.

    .. math::

        \operatorname{Sk}(x)_b = \sum_{j:\, h(j) = b} s_j x_j, \qquad
        \mathbb{E}\Big[\sum_b \operatorname{Sk}(x)_b^2\Big] = \lVert x \rVert^2, \qquad
        \operatorname{Var} \le \tfrac{2}{k} \lVert x \rVert^4

    with k buckets, and a random sign :math:`s_j` and bucket :math:`h(j)` for each entry. Buckets of
    consecutive entries would let a member put all of its update into one.

    The standard error of a length is :math:`1/\sqrt{2k}`: 4.4 % for k = 256, 2.2 % for k = 1,024.
    The count sketch of Charikar, Chen and Farach-Colton (2002), as the second moment is estimated
    by Alon, Matias and Szegedy (1996).

    Parameters
    ----------
    seed : bytes
        32 bytes, secret from members: who knows it can make a vector look short.
    size : int
        k, the number of buckets, in 1 ... length.
    length : int
        d, >= 1.
    """

    def __init__(self, seed: bytes, size: int, length: int) -> None:
        self.size = size
        self.length = length
        # Buckets 0 ... k - 1 have the sign +1, k ... 2k - 1 are the same with -1. Draws of 32 bits
        # modulo 2k are uniform up to k / 2**31.
        draws = np.frombuffer(key_stream(seed, 4 * length), "<u4") % np.uint32(2 * size)
        self._buckets = draws.astype(np.int32)
        signed_counts = np.bincount(self._buckets, minlength=2 * size)
        # [k], how many entries each bucket has.
        self.counts = signed_counts[:size] + signed_counts[size:]

    def of(self, vector: Ring) -> Ring:
        """Return the sketch ``[k]`` of a vector ``[d]``."""
        sums = np.zeros(2 * self.size, np.uint64)
        np.add.at(sums, self._buckets, vector)
        return sums[: self.size] - sums[self.size :]

    def without(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the part of a vector ``[d]`` that is orthogonal to the sketch's k sums."""
        k = self.size
        sums = np.bincount(self._buckets, vector, minlength=2 * k)
        means = (sums[:k] - sums[k:]) / np.maximum(self.counts, 1)
        signed_means = np.concatenate([means, -means])
        return np.asarray(vector - signed_means[self._buckets])
