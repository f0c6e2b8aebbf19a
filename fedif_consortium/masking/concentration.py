r"""How much of one parameter can be read off products with a few vectors.

With an orthonormal basis Q of the vectors' span, the combination of them that has the largest share
of its squared length in parameter j has :math:`\ell_j = \sum_i Q_{ij}^2` there: the leverage of j.
A basis vector has 1, and so have two vectors that differ in one place only. What the round's sketch
tells is taken off first: a sum of its entries and a vector that leaves one of them out would tell
that one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.masking.ring import BLOCK

# Of a vector's length: what lies outside of the others' span, below which nothing is known of it.
LEAST_DISTANCE = 2.0**-20


def extended(
    basis: NDArray[np.float64], vector: NDArray[np.float64], length: float
) -> NDArray[np.float64] | None:
    """Return an orthonormal basis with one more vector in its span.

    Parameters
    ----------
    basis : ndarray
        ``[j, d]``.
    vector : ndarray
        ``[d]``, without what the sketch tells of it.
    length : float
        Its length with that, >= 0.

    Returns
    -------
    ndarray or None
        ``[j + 1, d]``; the basis itself for zeros; ``None`` if the vector is a combination of the
        others up to 1e-6 of its length, so that rounding decides what it adds.
    """
    if length == 0:
        return basis
    rest = vector
    for _ in range(2):  # Twice is enough (Kahan).
        rest = rest - basis.T @ (basis @ rest)
    left = float(np.linalg.norm(rest))
    if left < LEAST_DISTANCE * length:
        return None
    return np.concatenate([basis, (rest / left)[None]])


def largest_leverage(basis: NDArray[np.float64]) -> float:
    """Return the largest leverage of a parameter, in [0, 1]; 0 without vectors."""
    blocks = (basis[:, i : i + BLOCK] for i in range(0, basis.shape[1], BLOCK))
    return max((float(np.max(np.sum(block**2, axis=0))) for block in blocks), default=0.0)
