"""Nearest-neighbour mixing: each update is replaced by the mean of those around it."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import pairwise_squared_distances


def neighbour_mixing(updates: Tensor, num_malicious: int) -> Tensor:
    r"""Return the matrix M by which ``M @ updates`` are the mixed updates.

    .. math:: y_i = \frac{1}{m - f} \sum_{j \in \mathcal{N}_i} x_j

    with :math:`\mathcal{N}_i` the m - f updates nearest to :math:`x_i`, itself included. A rule
    that is applied to the :math:`y_i` withstands attackers that hide in the honest clients'
    heterogeneity.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, m >= 1, finite.
    num_malicious : int
        f in [0, m - 1].

    Returns
    -------
    Tensor
        ``[m, m]``, float64; rows sum to 1.

    References
    ----------
    Allouah et al., 2023 (Fixing by mixing), algorithm 2.
    """
    distances = pairwise_squared_distances(updates)  # [m, m]
    kept = len(distances) - num_malicious
    nearest = distances.argsort(dim=1, stable=True)[:, :kept]  # [m, kept]
    return torch.zeros_like(distances).scatter_(1, nearest, 1.0 / kept)
