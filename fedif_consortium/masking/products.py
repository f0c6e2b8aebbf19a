r"""Inner products and weighted sums of masked updates, and what they mean as numbers.

.. math::

    \langle u_i, g \rangle = 2^{e - 52} \left(\langle y_i, \hat g \rangle
        - \langle \mathrm{mask}_i, \hat g \rangle \right), \qquad
    \sum_i a_i u_i = a\, 2^{-52} \Big(\sum_i W_i y_i - \sum_i W_i\, \mathrm{mask}_i\Big)

with :math:`\hat g = q_{24}(2^{-e} g)`, e such that :math:`2^{-e} \lVert g \rVert` is in [1/2, 1),
a the sum of the weights and :math:`W_i = q_{24}(a_i / a)`. See
:mod:`~fedif_consortium.masking.ring` for why nothing wraps.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.masking.ring import (
    UPDATE_BITS,
    VECTOR_BITS,
    WEIGHT_BITS,
    Ring,
    decode,
    encode,
)
from fedif_flower.errors import MaskingError

ROUNDED_BITS = 24  # Of a product or a sum, that a keeper leaves out.


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
    largest = np.max(np.abs(numbers), axis=1, initial=0.0)  # [j]
    if not np.isfinite(largest).all():
        raise MaskingError("a vector to multiply with is not finite")
    # By the largest entry first, so that no square is too large or too small.
    scale = np.where(largest > 0, largest, 1.0)
    exponents = np.frexp(scale * np.linalg.norm(numbers / scale[:, None], axis=1))[1]
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


def longest_vector(length: int) -> float:
    """Return the largest length, in units of the last bit, of what :func:`encode_vectors` gives."""
    return 2.0**VECTOR_BITS + math.sqrt(length)
