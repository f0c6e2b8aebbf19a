"""Inner products and distances between long vectors, in one pass over them.

Everything is computed in float64, block of columns by block of columns, so that the wide copy
of a block stays in the cache. Squares of finite float32 values cannot overflow in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.errors import ValuationError

# 10 rows of 2**13 float64 columns are 655 kB: they fit into a core's second-level cache.
_COLUMNS_AT_ONCE = 1 << 13
# The bound of `product_error` fails with a probability of at most 2 n exp(-8**2 / 2): 2e-9 for n =
# 2**16 terms.
_DEVIATIONS = 8.0


class InnerProducts(NamedTuple):
    """Per row <x_i, y> and ||x_i||^2, each ``[m]``, and ||y||^2, a scalar; all float64."""

    inner: Tensor
    squared_norms: Tensor
    squared_norm: Tensor


def pairwise_squared_distances(points: Tensor) -> Tensor:
    r"""Return the squared Euclidean distances between rows.

    .. math:: D_{ij} = \lVert x_i - x_j \rVert^2

    Coordinates are subtracted before they are squared, so that nothing cancels where two rows
    are nearly equal, wherever the origin lies.

    Parameters
    ----------
    points : Tensor
        ``[m, d]``: the rows x_i, finite; models and updates w_i - w_{t-1} do equally well.

    Returns
    -------
    Tensor
        ``[m, m]``, float64, symmetric, zero diagonal.

    Raises
    ------
    ValuationError
        If ``points`` has NaN or Inf.
    """
    m = points.shape[0]
    condensed = torch.zeros(m * (m - 1) // 2, dtype=torch.float64, device=points.device)
    for block in _blocks(points):
        condensed += torch.nn.functional.pdist(block).square_()
    _require_finite(condensed, points)
    distances = torch.zeros(m, m, dtype=torch.float64, device=points.device)
    first, second = torch.triu_indices(m, m, offset=1, device=points.device)
    distances[first, second] = distances[second, first] = condensed
    return distances


def gram_matrix(points: Tensor) -> Tensor:
    r"""Return the inner products between rows.

    .. math:: G_{ij} = \langle x_i, x_j \rangle

    Parameters
    ----------
    points : Tensor
        ``[m, d]``: the rows x_i, finite.

    Returns
    -------
    Tensor
        ``[m, m]``, float64; products of float32 values are exact in it.

    Raises
    ------
    ValuationError
        If ``points`` has NaN or Inf.
    """
    m = points.shape[0]
    gram = torch.zeros(m, m, dtype=torch.float64, device=points.device)
    for block in _blocks(points):
        gram.addmm_(block, block.T)
    _require_finite(gram, points)
    return gram


def cosines(gram: Tensor) -> Tensor:
    """Return the cosines between vectors from their inner products ``[m, m]``; 0 where one is 0."""
    lengths = gram.diagonal().clamp_min(torch.finfo(gram.dtype).tiny).sqrt()
    return gram / lengths / lengths[:, None]


def inner_products(points: Tensor, vector: Tensor) -> InnerProducts:
    """Return <x_i, y>, ||x_i||^2 and ||y||^2 for the rows x_i of ``points`` and y = ``vector``.

    Parameters
    ----------
    points : Tensor
        ``[m, d]``, finite.
    vector : Tensor
        ``[d]``, finite.

    Returns
    -------
    InnerProducts
        ``[m]``, ``[m]`` and a scalar, float64.

    Raises
    ------
    ValuationError
        If ``points`` has NaN or Inf.
    """
    inner = torch.zeros(points.shape[0], dtype=torch.float64, device=points.device)
    squared_norms = torch.zeros_like(inner)
    squared_norm = inner.new_zeros(())
    for block, piece in zip(_blocks(points), _blocks(vector), strict=True):
        inner.addmv_(block, piece)
        squared_norms += torch.linalg.vecdot(block, block)
        squared_norm += piece.dot(piece)
    _require_finite(squared_norms, points)
    return InnerProducts(inner, squared_norms, squared_norm)


def product_error(dtype: torch.dtype, terms: int) -> float:
    r"""Return how far rounding may move an inner product, in units of the vectors' lengths.

    .. math:: |\operatorname{fl}\langle x, y \rangle - \langle x, y \rangle|
              \le \lambda \sqrt{n} \, u \, |x|^\top |y|
              \le \lambda \sqrt{n} \, u \, \lVert x \rVert \lVert y \rVert, \qquad \lambda = 8

    with u = eps / 2 the unit roundoff and n the terms of a sum, in whatever order a processor adds
    them. It holds with a probability of at least :math:`1 - 2 n e^{-\lambda^2 / 2}` where rounding
    errors are independent with mean 0. The bound without that assumption has n in place of
    :math:`\lambda \sqrt n`: in float32 it is 0.004 for :math:`n = 2^{16}`, which differences
    between clients of large models come near to.

    Parameters
    ----------
    dtype : torch.dtype
        In which products are taken and added.
    terms : int
        n >= 0, of one sum.

    References
    ----------
    Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM Journal on
    Scientific Computing, 2019, theorem 3.1; Higham, "Accuracy and Stability of Numerical
    Algorithms", 2nd edition, section 3.1, for the bound without it.
    """
    return _DEVIATIONS * math.sqrt(terms) * torch.finfo(dtype).eps / 2


def shares(weights: Tensor) -> Tensor:
    """Return ``weights`` [m] divided by their sum, float64.

    Raises
    ------
    ValuationError
        If one is negative or not finite, or their sum is 0.
    """
    values = weights.to(torch.float64)
    total = values.sum()
    if not bool((values >= 0).all() & torch.isfinite(total) & (total > 0)):
        raise ValuationError(
            f"weights are {values.tolist()}; allowed: finite, >= 0, with a positive sum"
        )
    return values / total


def orthonormal(vectors: Sequence[Tensor], least: float) -> Tensor:
    """Return an orthonormal basis ``[k, d]`` of vectors' span, by Gram and Schmidt, in float64.

    Parameters
    ----------
    vectors : sequence of Tensor
        ``[d]`` each, finite.
    least : float
        A vector adds no direction where no more than this share of its length is left once its
        parts along the earlier ones are taken away. Where no vector adds one, k = 0.
    """
    basis: list[Tensor] = []
    for vector in vectors:
        remainder = vector.double()
        for unit in (*basis, *basis):  # Twice, since rounding leaves some of it the first time.
            remainder = remainder - (remainder @ unit) * unit
        length = torch.linalg.vector_norm(remainder)
        if length > least * torch.linalg.vector_norm(vector.double()):
            basis.append(remainder / length)
    if not vectors:
        return torch.zeros(0, 0, dtype=torch.float64)
    if not basis:
        return torch.zeros(0, len(vectors[0]), dtype=torch.float64)
    return torch.stack(basis)


def _blocks(values: Tensor) -> Iterator[Tensor]:
    for start in range(0, values.shape[-1], _COLUMNS_AT_ONCE):
        yield values[..., start : start + _COLUMNS_AT_ONCE].to(torch.float64)


def _require_finite(result: Tensor, points: Tensor) -> None:
    if bool(torch.isfinite(result).all()):
        return
    rows = torch.isfinite(points).all(dim=1).logical_not().nonzero().flatten().tolist()
    if rows:
        raise ValuationError(f"rows {rows} have NaN or Inf")
    raise ValuationError("squares overflow float64")
