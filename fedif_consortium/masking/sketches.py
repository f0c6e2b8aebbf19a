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

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.masking.masks import mask_blocks, stream
from fedif_consortium.masking.ring import BLOCK, UPDATE_BITS, Ring, decode
from fedif_flower.errors import MaskingError


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

    Raises
    ------
    MaskingError
        If one of them is out of its range.
    """

    def __init__(self, seed: bytes, size: int, length: int) -> None:
        if not 1 <= size <= length:
            raise MaskingError(f"a sketch of {size} buckets; allowed: 1 to {length}, the length")
        self.size, self.length = size, length
        # Those with a minus have the upper half. 2**32 draws modulo 2k are uniform up to k / 2**31.
        self._buckets = np.empty(length, np.int32)
        for start, piece in enumerate(stream(seed, 4 * length, 4 * BLOCK)):
            drawn = np.frombuffer(piece, "<u4") % np.uint32(2 * size)
            self._buckets[start * BLOCK : (start + 1) * BLOCK] = drawn

    def of(self, vector: Ring) -> Ring:
        """Return the sketch ``[k]`` of a vector ``[d]``."""
        return self.of_blocks(vector[i : i + BLOCK] for i in range(0, len(vector), BLOCK))

    def of_mask(self, seed: bytes) -> Ring:
        """Return the sketch ``[k]`` of a seed's mask, in the memory of one block."""
        return self.of_blocks(mask_blocks(seed, self.length))

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many entries ``[k]`` each bucket has."""
        both = np.bincount(self._buckets, minlength=2 * self.size)
        return np.asarray(both[: self.size] + both[self.size :])

    def without(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what of a vector ``[d]`` is at right angles to the sketch's k sums."""
        k = self.size
        sums = np.bincount(self._buckets, vector, minlength=2 * k)
        means = (sums[:k] - sums[k:]) / np.maximum(self.counts, 1)
        return np.asarray(vector - np.concatenate([means, -means])[self._buckets])

    def of_blocks(self, blocks: Iterable[Ring]) -> Ring:
        """Return the sketch ``[k]`` of a vector that comes in blocks.

        Raises
        ------
        MaskingError
            If the vector has another length.
        """
        sums = np.zeros(2 * self.size, np.uint64)
        start = 0
        for block in blocks:
            buckets = self._buckets[start : start + len(block)]
            start += len(block)
            if start > self.length:
                break
            np.add.at(sums, buckets, block)
        if start != self.length:
            raise MaskingError(f"a vector to sketch has not {self.length} entries")
        return sums[: self.size] - sums[self.size :]


def estimated_lengths(sketches: Ring) -> NDArray[np.float64]:
    """Return the lengths ``[m]`` that sketches ``[m, k]`` of encoded updates tell.

    A vector that does not fit its seed, or that uses the ring's width, has some 1e11.
    """
    values = decode(sketches, UPDATE_BITS)
    return np.asarray(np.sqrt(np.sum(values**2, axis=-1)))
