"""FLTrust: updates weighed by their agreement with an update of the server's own."""

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
    r"""Return what to multiply each client's update by, and how far it is trusted.

    .. math:: TS_i = \max(0, \cos(\Delta_i, \Delta_0)), \qquad
              a_i = \frac{TS_i}{\sum_j TS_j} \cdot
              \frac{\lVert \Delta_0 \rVert}{\lVert \Delta_i \rVert}, \qquad
              w_t = w_{t-1} + \sum_i a_i \Delta_i

    with :math:`\Delta_i = w_i - w_{t-1}` client i's update and :math:`\Delta_0` the update that
    the server makes from its own root data. If nobody is trusted, every coefficient is 0: the
    model stays as it is. A zero update has trust and coefficient 0, and so has one so short that
    its coefficient would be infinite in the updates' dtype.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, m >= 1, finite.
    server_update : Tensor
        ``[d]``, finite.

    Returns
    -------
    TrustedCoefficients
        ``coefficients`` and ``trust``. The coefficients need not sum to 1.

    Raises
    ------
    ValuationError
        If the shapes do not fit together, or a value is NaN or Inf.

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
    # Divided by their sum, cosines that are rounding would be trust like any other.
    trust = torch.where(trust > product_error(trust.dtype, updates.shape[1]), trust, 0.0)
    # The updates' own dtype has no number that would bring so short a one to the server's length.
    moves = norms > server_norm * torch.finfo(updates.dtype).tiny
    trust = torch.where(moves, trust, 0.0)
    share = trust / trust.sum().clamp_min(1e-300)
    rescaling = torch.where(moves, server_norm / norms, 0.0)
    return TrustedCoefficients(share * rescaling, trust)
