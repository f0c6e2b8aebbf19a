r"""What a server computes of a round whose updates it does not see.

It asks the keeper for the same of the masks, takes that away, and believes neither members nor
keeper unchecked. Sketches, products and the sum are linear in the masks, so the keeper's answers
have to agree, up to what it rounds:
:math:`\operatorname{Sk}(M) = \sum_i W_i \operatorname{Sk}(\mathrm{mask}_i)` and
:math:`\langle M, \hat g \rangle = \sum_i W_i \langle \mathrm{mask}_i, \hat g \rangle` for its sum
M. Answers that agree but are false are as if a member had sent another update, of the length that
it stated: the server cannot tell them apart, the member itself can.

A member that found a vector whose sketch is short by chance cannot use it: a product is bounded by
:math:`\lvert \langle u_i, g \rangle \rvert \le \lVert u_i \rVert \lVert g \rVert`, and the step by
:math:`\lVert \sum_i a_i u_i \rVert \le \sum_i a_i \lVert u_i \rVert`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedif_consortium.masking.keeper import Keeper
from fedif_consortium.masking.keeper_client import HttpKeeper
from fedif_consortium.masking.ring import (
    ROUNDED_BITS,
    VECTOR_BITS,
    Ring,
    decode,
    decode_products,
    decode_step,
    encode,
    encode_vectors,
    encode_weights,
    products,
)
from fedif_consortium.masking.sketches import SignSketch
from fedif_flower.errors import KeeperError, MaskingError

logger = logging.getLogger(__name__)
STANDARD_ERRORS = 5.0  # An honest member is refused once in some million rounds.
ROUNDING = 1e-4  # Of a bound: what encoding may add to it.
# Of the sum's rounding, as its masks are random: an honest one is beyond it once in 1e31 sums.
_DEVIATIONS = 6.0 * 2.0**ROUNDED_BITS


@dataclass
class MaskedRound:
    """The updates of one round, of which nobody sees any.

    Implements :class:`~fedif_flower.round.HiddenUpdates`.

    Attributes
    ----------
    keeper : Keeper or HttpKeeper
        Answers for the masks.
    place : (int, int)
        Run and round, as the keeper knows them.
    sketch : SignSketch
        The keeper's.
    masks : ndarray
        ``[n, k]``, the sketches of the n masks that the keeper holds.
    places : list of int
        Of the m members that count, among those n.
    vectors : list of ndarray
        ``[d]`` each, what these m sent.
    sketches : ndarray
        ``[m, k]``, of their updates.
    lengths : ndarray
        ``[m]``, as they state them.
    dtype : torch.dtype
        Of steps.
    """

    keeper: Keeper | HttpKeeper
    place: tuple[int, int]
    sketch: SignSketch
    masks: Ring
    places: list[int]
    vectors: list[Ring]
    sketches: NDArray[np.float64]
    lengths: NDArray[np.float64]
    dtype: torch.dtype
    _asked: list[tuple[Ring, Ring]] = field(default_factory=list)  # [d], and the answer, [n].
    _sum: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def longest(self) -> NDArray[np.float64]:
        """The longest, ``[m]``, that sketches allow the updates to be."""
        return self.lengths * (1 + length_tolerance(self.sketch.size))

    def products(self, vector: Tensor) -> Tensor:
        """Return the inner products ``[m]``, float64, of the updates with a vector ``[d]``.

        Raises
        ------
        KeeperError
            If the keeper does not answer, or answers nonsense.
        MaskingError
            If a product is none that an update of its length can have.
        """
        values = vector.detach().cpu().double().numpy()
        encoded, exponents = encode_vectors(values[None])  # [1, d]
        if not encoded.any():
            return torch.zeros(len(self.vectors), dtype=torch.float64)
        answer = self.keeper.products(*self.place, encoded)  # [n, 1]
        own = np.array([products(row, encoded) for row in self.vectors])  # [m, 1]
        found = decode_products(own - answer[self.places], exponents)[:, 0]
        if not are_possible(found, self.longest, float(np.linalg.norm(values))).all():
            raise MaskingError("a product is larger than the member's update allows")
        self._asked.append((encoded[0], answer[:, 0]))
        return torch.from_numpy(found)

    def cut(self, coefficients: Tensor) -> Tensor:
        """Return factors ``[m]`` with which the keeper's policy allows coefficients ``[m]``.

        Without, one member with a large share would end every round.
        """
        wanted = coefficients.detach().cpu().double().numpy()
        found = self.keeper.policy().capped(wanted)
        if found is not wanted:
            logger.info("round %d: weights are cut to what the keeper answers", self.place[1])
        factors = np.divide(found, wanted, out=np.ones_like(wanted), where=wanted > 0)
        return torch.from_numpy(factors)

    def summed(self, weights: Tensor) -> Tensor:
        """Return the sum ``[d]`` of the updates times weights ``[m]``.

        Raises
        ------
        KeeperError
            If the keeper does not answer, or its sum contradicts what it said before.
        MaskingError
            If these weights are no multiple of the first ones, or the sum cannot be theirs.
        """
        wanted = weights.detach().cpu().double().numpy()
        if not wanted.any():
            return torch.zeros(len(self.vectors[0]), dtype=self.dtype)
        if self._sum is None:
            self._sum = wanted, self._take(wanted)
        first, step = self._sum
        share = float(wanted.sum() / first.sum())
        if not np.allclose(wanted, share * first, rtol=1e-9, atol=0):
            raise MaskingError("a masked round has one sum: its weights cannot be changed")
        return torch.from_numpy(share * step).to(self.dtype)

    def _take(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Ask for the round's sum, and return the step ``[d]``."""
        of_all = np.zeros(len(self.masks))  # [n]
        of_all[self.places] = weights
        shares, total = encode_weights(of_all)
        masks = self.keeper.weighted_sum(*self.place, shares)
        check_sketches(masks, shares, self.sketch, self.masks)
        for vector, answer in self._asked:
            check_product(masks, shares, vector, answer)
        masked = np.zeros_like(masks)
        for vector, share in zip(self.vectors, shares[self.places], strict=True):
            masked += vector * share
        step = decode_step(masked - masks, total)
        check_step(step, weights, self.longest)
        return step

    def sketched(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return roughly the inner products ``[m, m]`` and the coordinates ``[m, k]``.

        Lengths are those stated, cosines those of the sketches, a basis that of the sketches'
        basis: what is left of an update beside its coordinates has no negative square.
        """
        sketch, sketches, bits = self.sketch, self.sketches, VECTOR_BITS
        theirs = [decode(sketch.of(encode(v, bits)), bits) for v in basis.cpu().double().numpy()]
        k = min(len(theirs), sketch.size)
        shares = np.zeros((len(sketches), len(theirs)))  # [m, k]
        if k:
            columns, triangle = np.linalg.qr(np.array(theirs[:k]).T)
            shares[:, :k] = sketches @ (columns * np.sign(np.diag(triangle)))
        found = np.linalg.norm(sketches, axis=1)  # [m]
        scale = np.divide(self.lengths, found, out=np.zeros_like(found), where=found > 0)
        gram = sketches @ sketches.T * np.outer(scale, scale)
        return torch.from_numpy(gram), torch.from_numpy(shares * scale[:, None])


def check_sketches(total: Ring, weights: Ring, sketch: SignSketch, sketches: Ring) -> None:
    """Raise KeeperError unless a keeper's sum ``[d]`` agrees with sketches ``[m, k]`` of its masks.

    ``weights`` ``[m]`` are in the ring, as the keeper got them.
    """
    said = products(weights, sketches.T)  # [k]
    if not np.all(_apart(sketch.of(total), said) <= _DEVIATIONS * np.sqrt(sketch.counts)):
        raise KeeperError("the keeper's sum contradicts its sketches")


def check_product(total: Ring, weights: Ring, vector: Ring, answer: Ring) -> None:
    """Raise KeeperError unless a keeper's sum ``[d]`` agrees with its products ``[m]``.

    ``vector`` ``[d]`` is what they are with, ``weights`` as in :func:`check_sketches`.
    """
    allowed = 2.0 ** (ROUNDED_BITS - 1) * float(np.sum(weights, dtype=np.float64))
    allowed += _DEVIATIONS * float(np.linalg.norm(decode(vector, 0)))
    if not _apart(products(total, vector[None]), products(answer, weights[None])) <= allowed:
        raise KeeperError("the keeper's sum contradicts its products")


def length_tolerance(size: int) -> float:
    """Return by which share a stated length may differ from a sketch's of ``size`` buckets.

    5 standard errors: 22 % for k = 256, 11 % for k = 1,024. A member that understates its length
    gains at most that in a score that is divided by it.
    """
    return STANDARD_ERRORS / float(np.sqrt(2 * size))


def are_lengths_true(
    stated: NDArray[np.float64], estimated: NDArray[np.float64], size: int
) -> NDArray[np.bool_]:
    """Return whether each stated length ``[m]``, finite, fits the one that a sketch tells ``[m]``.

    Why members state lengths: FedIF divides by them, and a sketch knows them to a few percent. The
    sum of squares is not linear, so nobody can compute it on masked vectors.
    """
    return np.asarray(np.abs(estimated - stated) <= length_tolerance(size) * stated)


def are_possible(
    scores: NDArray[np.float64], lengths: NDArray[np.float64], norm: float
) -> NDArray[np.bool_]:
    """Return whether products ``[m]`` can be those of updates of lengths ``[m]`` with a vector."""
    bounds = lengths * norm
    return np.asarray(np.abs(scores) <= bounds + ROUNDING * (bounds + norm))


def check_step(
    step: NDArray[np.float64], weights: NDArray[np.float64], lengths: NDArray[np.float64]
) -> None:
    """Raise MaskingError if a step ``[d]`` is longer than its updates, ``[m]``, allow."""
    length, bound = float(np.linalg.norm(step)), float(np.dot(weights, lengths))
    if not length <= bound * (1 + ROUNDING) + ROUNDING * float(np.sum(weights)):
        raise MaskingError(
            f"the masked sum has length {length:g}, and its updates allow {bound:g}: a member's "
            "vector is not what its sketch says"
        )


def _apart(one: Ring, other: Ring) -> NDArray[np.float64]:
    """Return how far elements of the ring are apart."""
    return np.abs((one - other).view(np.int64).astype(np.float64))
