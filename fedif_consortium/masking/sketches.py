r"""Sketches: a few random sums of a vector, linear in it, that tell its length.

.. math::

    \operatorname{Sk}(x)_b = \sum_{j:\, h(j) = b} s_j x_j, \qquad
    \mathbb{E}\Big[\sum_b \operatorname{Sk}(x)_b^2\Big] = \lVert x \rVert^2, \qquad
    \operatorname{Var} \le \tfrac{2}{k} \lVert x \rVert^4

with k buckets, and a random sign :math:`s_j` and bucket :math:`h(j)` for each entry. Buckets of
consecutive entries would let a member put all of its update into one.

The standard error of a length is :math:`1/\sqrt{2k}`: 4.4 % for k = 256, 2.2 % for k = 1,024. The
count sketch of Charikar, Chen and Farach-Colton (2002), as the second moment is estimated by Alon,
Matias and Szegedy (1996).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.masking.ring import UPDATE_BITS, Ring, decode, key_stream


class SignSketch:
    """Sketches vectors of one length with the signs and buckets of one seed.

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
        self.size, self.length = size, length
        # Those with a minus have the upper half. 2**32 draws modulo 2k are uniform up to k / 2**31.
        drawn = np.frombuffer(key_stream(seed, 4 * length), "<u4") % np.uint32(2 * size)
        self._buckets = drawn.astype(np.int32)
        both = np.bincount(self._buckets, minlength=2 * size)
        self.counts = both[:size] + both[size:]  # [k], how many entries each bucket has.

    def of(self, vector: Ring) -> Ring:
        """Return the sketch ``[k]`` of a vector ``[d]``."""
        sums = np.zeros(2 * self.size, np.uint64)
        np.add.at(sums, self._buckets, vector)
        return sums[: self.size] - sums[self.size :]

    def without(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what of a vector ``[d]`` is at right angles to the sketch's k sums."""
        k = self.size
        sums = np.bincount(self._buckets, vector, minlength=2 * k)
        means = (sums[:k] - sums[k:]) / np.maximum(self.counts, 1)
        return np.asarray(vector - np.concatenate([means, -means])[self._buckets])


def estimated_lengths(sketches: Ring) -> NDArray[np.float64]:
    """Return the lengths ``[m]`` that sketches ``[m, k]`` of encoded updates tell.

    A vector that does not fit its seed, or that uses the ring's width, has some 1e11.
    """
    return np.asarray(np.linalg.norm(decode(sketches, UPDATE_BITS), axis=-1))
