"""FedIF's valuation: how steeply a client's update goes down the validation loss."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import product_error
from fedif_flower.errors import ValuationError
from fedif_flower.round import RoundUpdates, UnseenUpdates
from fedif_flower.settings import Setting
from fedif_flower.valuation.ledger import Scores
from fedif_flower.valuation.parallel import LossAndGradient
from fedif_flower.valuation.validation import Validation

# 2**16 columns of 10 clients are 2.6 MB: they stay in the cache between two products.
_COLUMNS_AT_ONCE = 1 << 16
_SMALLEST_SAFE = 1e-30  # A smaller squared length may have lost digits in float32.


class Projections(NamedTuple):
    """Each client's <w_{t-1} - w_i, g> and ||w_{t-1} - w_i||^2, both ``[m]``, float64.

    ``error`` times the length of an update is how far rounding may move its inner product (see
    :func:`~fedif_flower.aggregators.linear_algebra.product_error`).
    """

    inner: Tensor
    squared_norm: Tensor
    error: float = 0.0


def project_updates(
    client_updates: Tensor, validation_gradient: Tensor, squared_norms: Tensor | None = None
) -> Projections:
    """Project each client's update on the validation gradient, in one pass over the updates.

    Parameters
    ----------
    client_updates : Tensor
        ``[m, d]``: w_i - w_{t-1}.
    validation_gradient : Tensor
        ``[d]``: gradient g of the validation loss at w_{t-1}.
    squared_norms : Tensor, optional
        ``[m]``: the squared lengths of the updates, where they are known already.

    Returns
    -------
    Projections
        Inner products of g with the *negative* updates, and squared lengths. Blocks of columns are
        computed at least in float32, and added up in float64.
    """
    # In half precision, a product may leave the range although its factors are within it.
    wide = torch.promote_types(client_updates.dtype, torch.float32)
    projections = _project(client_updates, validation_gradient, squared_norms, wide)
    squared = projections.squared_norm
    # Squares below or beyond the range of float32 need the wider type; models rarely have them.
    if bool(((squared < _SMALLEST_SAFE) | ~torch.isfinite(squared)).any()):
        return _project(client_updates, validation_gradient, None, torch.float64)
    return projections


def _project(
    updates: Tensor, gradient: Tensor, squared_norms: Tensor | None, dtype: torch.dtype
) -> Projections:
    """Return the projections, with blocks of columns in ``dtype``; see :func:`project_updates`."""
    inner = torch.zeros(len(updates), dtype=torch.float64, device=updates.device)
    squared = torch.zeros_like(inner)
    for start in range(0, len(gradient), _COLUMNS_AT_ONCE):
        columns = slice(start, start + _COLUMNS_AT_ONCE)
        block = updates[:, columns].to(dtype)  # [m, columns]
        inner -= (block @ gradient[columns].to(block)).double()
        if squared_norms is None:
            squared += torch.linalg.vecdot(block, block).double()
    if squared_norms is not None:
        squared = squared_norms.to(inner)
    return Projections(inner, squared, _error(gradient, dtype))


def _project_unseen(updates: RoundUpdates, unseen: UnseenUpdates, gradient: Tensor) -> Projections:
    """Project updates that nobody sees; their products may err by more than rounding."""
    inner = -unseen.products(gradient)
    squared_norms = updates.squared_norms.cpu()
    lengths = squared_norms.sqrt()
    is_sent = lengths > 0
    error = _error(gradient, updates.global_params.dtype)
    if bool(is_sent.any()):
        relative_errors = unseen.product_errors(gradient)[is_sent] / lengths[is_sent]
        # The median: a client that sends next to nothing, and so has a large relative error, must
        # not make all influences equal.
        error = max(error, float(relative_errors.median()))
    return Projections(inner, squared_norms, error)


def _error(gradient: Tensor, dtype: torch.dtype) -> float:
    """Return :attr:`Projections.error` of products with a gradient ``[d]``."""
    length = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    return product_error(dtype, min(len(gradient), _COLUMNS_AT_ONCE)) * length


def round_influence(
    global_params: Tensor, client_params: Tensor, validation_gradient: Tensor
) -> Tensor:
    r"""Return each client's round influence.

    .. math:: \Phi_i = \left\langle \frac{w_{t-1} - w_i}{\lVert w_{t-1} - w_i \rVert},
              g \right\rangle, \qquad g = \nabla \ell(w_{t-1}, D')

    with :math:`w_{t-1}` the global model, :math:`w_i` client i's model after training and
    :math:`D'` the server's validation set. A zero update has influence 0.

    Parameters
    ----------
    global_params : Tensor
        ``[d]``: :math:`w_{t-1}`.
    client_params : Tensor
        ``[m, d]``: the rows :math:`w_i`.
    validation_gradient : Tensor
        ``[d]``: g.

    Returns
    -------
    Tensor
        ``[m]``, float64; positive where the update goes down the validation loss.

    Raises
    ------
    ValuationError
        If the shapes do not fit together.

    References
    ----------
    FedIF, equation for the round influence.
    """
    d = global_params.shape
    if len(d) != 1 or not client_params.shape[1:] == d == validation_gradient.shape:
        raise ValuationError(
            "expected global_params [d], client_params [m, d] and validation_gradient [d], got "
            f"{list(d)}, {list(client_params.shape)} and {list(validation_gradient.shape)}"
        )
    return influence_from(project_updates(client_params - global_params, validation_gradient))


def influence_from(projections: Projections, *, weight_normalization: bool = True) -> Tensor:
    """Return round influences ``[m]`` from projections; see :func:`round_influence`.

    Without ``weight_normalization`` they are not divided by the updates' lengths.
    """
    if not weight_normalization:
        return projections.inner
    norm = projections.squared_norm.sqrt()
    divisor = norm.clamp_min(torch.finfo(norm.dtype).tiny)
    return torch.where(norm > 0, projections.inner / divisor, 0.0)


def influence_resolution(projections: Projections, *, weight_normalization: bool = True) -> float:
    r"""Return how far apart two round influences may be by rounding alone.

    .. math:: r = 2 \left(1 + \tfrac{1}{2}\right) \varepsilon \lVert g \rVert

    with g the validation gradient and :math:`\varepsilon` the relative error of an inner product
    (:func:`~fedif_flower.aggregators.linear_algebra.product_error`). An influence errs by
    :math:`\varepsilon \lVert g \rVert` through its product, and by half as much through its
    update's squared length. The factor 2 stands for two influences. Without weight normalisation,
    r is multiplied by the longest update's length.
    """
    norms = projections.squared_norm.sqrt()
    if weight_normalization or not len(norms):
        return 3 * projections.error
    return 3 * projections.error * float(norms.max())


def _is_same(params: Tensor, others: Tensor) -> bool:
    """Tell whether two vectors ``[d]``, perhaps on different devices, are the same model."""
    return params is others or torch.equal(params, others.to(params.device))


@dataclass(eq=False, repr=False)
class InfluenceValuation:
    """FedIF's valuation on a validation set; the gradient is taken while the clients train.

    Parameters
    ----------
    validation : Validation
        The server's held-out data.
    weight_normalization : bool
        Divide each inner product by the norm of the update.
    """

    validation: Validation
    _: KW_ONLY
    weight_normalization: Annotated[
        bool, Setting("divide by the norm of the update (off: an ablation)")
    ] = True
    # The model that `prepare` was given, and the gradient there, which may still be computed.
    _pending: tuple[Tensor, Future[LossAndGradient]] | None = field(default=None, init=False)

    def prepare(self, params: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Begin to compute the validation gradient at ``params`` [d], while the clients train."""
        self._pending = (params, self.validation.gradients.begin(params, buffers))

    def gradient(self, params: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
        """Return the validation gradient ``[d]`` at the model that the clients received."""
        pending = self._pending
        self._pending = None  # It is for this round only.
        # Another strategy may have prepared this valuation for its own model meanwhile.
        if pending is not None and _is_same(pending[0], params):
            return pending[1].result().gradient
        return self.validation.gradients.begin(params, buffers).result().gradient

    def score(self, updates: RoundUpdates) -> Scores:
        """Return round influences ``[m]``, and un-normalised ones, which are added up to INF."""
        client_updates = updates.client_updates
        gradient = self.gradient(updates.global_params, updates.named_buffers)
        gradient = gradient.to(client_updates.device)
        if updates.unseen is not None:
            projections = _project_unseen(updates, updates.unseen, gradient)
        else:
            projections = project_updates(client_updates, gradient, updates.squared_norms)
        normalized = self.weight_normalization
        return Scores(
            influence_from(projections, weight_normalization=normalized).cpu(),
            influences=projections.inner.cpu(),
            evaluations=1,
            resolution=influence_resolution(projections, weight_normalization=normalized),
        )
