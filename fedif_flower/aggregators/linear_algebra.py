"""Inner products and distances between long vectors, in one pass over them.

Everything is computed in float64, in which squares of finite float32 values cannot overflow. The
vectors are converted one block of columns at a time, so that the float64 copy of a block stays in
the cache.
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
# lambda in `product_error`: the bound there fails with a probability of at most
# 2 n exp(-lambda**2 / 2), which is 2e-9 for n = 2**16 terms.
_DEVIATIONS = 8.0


class InnerProducts(NamedTuple):
    """<x_i, y> and ||x_i||^2 of each row x_i, both ``[m]``, and the scalar ||y||^2; float64."""

    inner: Tensor
    squared_norms: Tensor
    squared_norm: Tensor


def pairwise_squared_distances(points: Tensor) -> Tensor:
    r"""Return the squared Euclidean distances between rows.

    .. math:: D_{ij} = \lVert x_i - x_j \rVert^2

    Coordinates are subtracted before they are squared. Distances from inner products,
    :math:`\lVert x_i \rVert^2 + \lVert x_j \rVert^2 - 2 \langle x_i, x_j \rangle`, would lose
    their digits where two rows are nearly equal and far from the origin.

    Parameters
    ----------
    points : Tensor
        ``[m, d]``: the rows x_i, finite. Models w_i and updates w_i - w_{t-1} have the same
        distances.

    Returns
    -------
    Tensor
        ``[m, m]``, float64, symmetric, zero diagonal.

    Raises
    ------
    ValuationError
        If ``points`` has NaN or Inf, or squares overflow float64.
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
        ``[m, m]``, float64: wide enough for a product of two float32 values to be exact.

    Raises
    ------
    ValuationError
        If ``points`` has NaN or Inf, or squares overflow float64.
    """
    m = points.shape[0]
    gram = torch.zeros(m, m, dtype=torch.float64, device=points.device)
    for block in _blocks(points):
        gram.addmm_(block, block.T)
    _require_finite(gram, points)
    return gram


def cosines(gram: Tensor) -> Tensor:
    """Return the cosines ``[m, m]`` of m vectors with Gram matrix ``gram``; 0 for zero vectors."""
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
        If ``points`` has NaN or Inf, or squares overflow float64. ``vector`` is not checked.
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
    r"""Return a bound on the rounding error of an inner product, in units of ||x|| ||y||.

    .. math:: |\operatorname{fl}\langle x, y \rangle - \langle x, y \rangle|
              \le \lambda \sqrt{n} \, u \, |x|^\top |y|
              \le \lambda \sqrt{n} \, u \, \lVert x \rVert \lVert y \rVert, \qquad \lambda = 8

    with u = eps / 2 the unit roundoff of the dtype, n the number of terms, and fl the result in
    floating point. The terms may be added in any order, as processors differ in that. The first
    bound holds with a probability of at least :math:`1 - 2 n e^{-\lambda^2 / 2}` if rounding errors
    are independent with mean 0. A bound without that assumption has n in place of
    :math:`\lambda \sqrt n`. In float32 that would be 0.004 for :math:`n = 2^{16}`: too wide, since
    scores of two clients of a large model may differ by no more.

    Parameters
    ----------
    dtype : torch.dtype
        The dtype in which products are taken and added.
    terms : int
        n >= 0, the number of terms in one sum.

    Returns
    -------
    float
        :math:`\lambda \sqrt{n} \, u`.

    References
    ----------
    Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM Journal on
    Scientific Computing, 2019, theorem 3.1; Higham, "Accuracy and Stability of Numerical
    Algorithms", 2nd edition, section 3.1, for the bound without the assumption.
    """
    return _DEVIATIONS * math.sqrt(terms) * torch.finfo(dtype).eps / 2


def normalize_weights(weights: Tensor) -> Tensor:
    """Return ``weights`` [m] divided by their sum, float64.

    Raises
    ------
    ValuationError
        If a weight is negative or not finite, or their sum is 0.
    """
    values = weights.to(torch.float64)
    total = values.sum()
    if not bool((values >= 0).all() & torch.isfinite(total) & (total > 0)):
        raise ValuationError(
            f"weights are {values.tolist()}; allowed: finite, >= 0, with a positive sum"
        )
    return values / total


def orthonormal(vectors: Sequence[Tensor], least: float) -> Tensor:
    """Return an orthonormal basis ``[k, d]`` of the vectors' span, by Gram-Schmidt, in float64.

    Parameters
    ----------
    vectors : sequence of Tensor
        ``[d]`` each, finite.
    least : float
        A vector adds a direction if more than this share of its length remains after its
        components along the basis so far are subtracted. k = 0 if no vector adds one.
    """
    basis: list[Tensor] = []
    for vector in vectors:
        remainder = vector.double()
        # Every component is subtracted twice: rounding leaves a little of it the first time.
        for unit in (*basis, *basis):
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
    """Yield ``values`` ``[..., d]`` in float64, a block of columns at a time."""
    for start in range(0, values.shape[-1], _COLUMNS_AT_ONCE):
        yield values[..., start : start + _COLUMNS_AT_ONCE].to(torch.float64)


def _require_finite(result: Tensor, points: Tensor) -> None:
    """Raise ValuationError if a result is not finite, and name the rows of ``points`` at fault."""
    if bool(torch.isfinite(result).all()):
        return
    rows = torch.isfinite(points).all(dim=1).logical_not().nonzero().flatten().tolist()
    if rows:
        raise ValuationError(f"the updates at rows {rows} have NaN or Inf")
    raise ValuationError("updates are so long that their squares overflow float64")
