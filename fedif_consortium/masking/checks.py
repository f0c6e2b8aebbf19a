r"""What a server checks before it believes members and keeper.

Sketches, products and the sum are linear in the masks, so the keeper's answers have to agree, up to
what it rounds: :math:`\operatorname{Sk}(M) = \sum_i W_i \operatorname{Sk}(\mathrm{mask}_i)` and
:math:`\langle M, \hat g \rangle = \sum_i W_i \langle \mathrm{mask}_i, \hat g \rangle` for its sum
M. Answers that agree but are false are
as if a member had sent another update, of the length that it stated: the server cannot tell them
apart, the member itself can.

A member that found a vector whose sketch is short by chance cannot use it: a product is bounded by
:math:`\lvert \langle u_i, g \rangle \rvert \le \lVert u_i \rVert \lVert g \rVert`, and the step by
:math:`\lVert \sum_i a_i u_i \rVert \le \sum_i a_i \lVert u_i \rVert`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.masking.products import ROUNDED_BITS, products
from fedif_consortium.masking.ring import Ring, decode
from fedif_consortium.masking.sketches import SignSketch
from fedif_flower.errors import KeeperError, MaskingError

STANDARD_ERRORS = 5.0  # An honest member is refused once in some million rounds.
ROUNDING = 1e-4  # Of a bound: what encoding may add to it.
# Of the sum's rounding, as its masks are random: an honest one is beyond it once in 1e31 sums.
_DEVIATIONS = 6.0 * 2.0**ROUNDED_BITS


def check_sum(
    total: Ring,
    weights: Ring,
    sketch: SignSketch,
    sketches: Ring,
    vectors: Ring,
    answers: Ring,
) -> None:
    """Raise KeeperError unless the keeper's sum agrees with what it said before.

    Parameters
    ----------
    total : ndarray
        ``[d]``, the sum of the masks times weights.
    weights : ndarray
        ``[m]``, as the keeper got them.
    sketch : SignSketch
        Of this round.
    sketches : ndarray
        ``[m, k]``, of the masks.
    vectors, answers : ndarray
        ``[j, d]`` and ``[m, j]``, the products that were asked for before.
    """
    apart = _difference(sketch.of(total), _weighted(weights, sketches))  # [k]
    if not np.all(apart <= _DEVIATIONS * np.sqrt(sketch.counts)):
        raise KeeperError("the keeper's sum contradicts its sketches")
    apart = _difference(products(total, vectors), _weighted(weights, answers))  # [j]
    allowed = 2.0 ** (ROUNDED_BITS - 1) * float(np.sum(weights, dtype=np.float64))
    if not np.all(apart <= allowed + _DEVIATIONS * np.linalg.norm(decode(vectors, 0), axis=1)):
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
    """Return whether each stated length ``[m]`` fits the one that a sketch tells ``[m]``.

    Why members state lengths: FedIF divides by them, and a sketch knows them to a few percent. The
    sum of squares is not linear, so nobody can compute it on masked vectors.
    """
    tolerance = length_tolerance(size)
    is_number = np.isfinite(stated) & (stated >= 0)
    return np.asarray(is_number & (np.abs(estimated - stated) <= tolerance * stated))


def are_possible(
    scores: NDArray[np.float64], lengths: NDArray[np.float64], norms: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return whether products ``[m, j]`` can be those of updates and vectors of these lengths.

    Parameters
    ----------
    scores : ndarray
        ``[m, j]``.
    lengths, norms : ndarray
        ``[m]`` of the updates, ``[j]`` of the vectors.
    """
    bounds = lengths[:, None] * norms  # [m, j]
    slack = ROUNDING * (bounds + norms)
    return np.asarray(np.all(np.abs(scores) <= bounds + slack, axis=1))


def check_step(
    step: NDArray[np.float64], weights: NDArray[np.float64], lengths: NDArray[np.float64]
) -> None:
    """Raise MaskingError if a step is longer than its updates allow.

    Parameters
    ----------
    step : ndarray
        ``[d]``, the decoded sum.
    weights, lengths : ndarray
        ``[m]``, of the updates in it.
    """
    length, bound = float(np.linalg.norm(step)), float(np.dot(weights, lengths))
    if not length <= bound * (1 + ROUNDING) + ROUNDING * float(np.sum(weights)):
        raise MaskingError(
            f"the masked sum has length {length:g}, and its updates allow {bound:g}: a member's "
            "vector is not what its sketch says"
        )


def _difference(one: Ring, other: Ring) -> NDArray[np.float64]:
    """Return how far elements of the ring are apart."""
    return np.abs((one - other).view(np.int64).astype(np.float64))


def _weighted(weights: Ring, rows: Ring) -> Ring:
    """Return the sum ``[n]`` of rows ``[m, n]`` times weights ``[m]``, in the ring."""
    return np.asarray(np.sum(weights[:, None] * rows, axis=0, dtype=np.uint64))
