"""FLTrust: weigh updates by their cosine with an update that the server trains itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import inner_products, product_error


class TrustedCoefficients(NamedTuple):
    """Coefficients a and trust scores TS, each ``[m]``, float64, >= 0."""

    coefficients: Tensor
    trust: Tensor


def fltrust_coefficients(updates: Tensor, server_update: Tensor) -> TrustedCoefficients:
    r"""Return the coefficient of each client's update, and how far the client is trusted.

    .. math:: TS_i = \max(0, \cos(\Delta_i, \Delta_0)), \qquad
              a_i = \frac{TS_i}{\sum_j TS_j} \cdot
              \frac{\lVert \Delta_0 \rVert}{\lVert \Delta_i \rVert}, \qquad
              w_t = w_{t-1} + \sum_i a_i \Delta_i

    with :math:`\Delta_i = w_i - w_{t-1}` client i's update and :math:`\Delta_0` the update that
    the server makes from its own root data. If no client is trusted, every coefficient is 0: the
    model stays as it is. Trust and coefficient are 0 for a zero update, for a cosine that is
    rounding alone, and for an update so short that its coefficient would be infinite in the
    updates' dtype.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, m >= 1, finite.
    server_update : Tensor
        ``[d]``, finite. This is not checked: with NaN or Inf, no client is trusted.

    Returns
    -------
    TrustedCoefficients
        ``coefficients`` and ``trust``. The coefficients need not sum to 1.

    Raises
    ------
    ValuationError
        If ``updates`` has NaN or Inf, or squares overflow float64.

    References
    ----------
    Cao et al., "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping",
    NDSS 2021.
    """
    products = inner_products(updates, server_update)
    norms = products.squared_norms.sqrt()  # [m]
    server_norm = products.squared_norm.sqrt()
    length = norms * server_norm  # [m]
    trust = torch.where(length > 0, products.inner / length, 0.0).clamp(0.0, 1.0)
    # Where all cosines are rounding errors, their shares of the sum would be as large as any.
    trust = torch.where(trust > product_error(trust.dtype, updates.shape[1]), trust, 0.0)
    # No finite factor in the updates' dtype would bring a shorter update to the server's length.
    moves = norms > server_norm * torch.finfo(updates.dtype).tiny
    trust = torch.where(moves, trust, 0.0)
    weights = trust / trust.sum().clamp_min(1e-300)
    rescaling = torch.where(moves, server_norm / norms, 0.0)
    return TrustedCoefficients(weights * rescaling, trust)
