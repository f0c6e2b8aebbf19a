"""Nearest-neighbour mixing: each update is replaced by the mean of those around it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import pairwise_squared_distances
from fedif_flower.errors import ValuationError
from fedif_flower.round import Aggregation, RoundUpdates


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
    m = len(distances)
    if not 0 <= num_malicious < m:
        raise ValuationError(f"num_malicious is {num_malicious}; allowed: 0 to {m - 1}")
    kept = m - num_malicious
    nearest = distances.argsort(dim=1, stable=True)[:, :kept]  # [m, kept]
    return torch.zeros_like(distances).scatter_(1, nearest, 1.0 / kept)


def mix(updates: RoundUpdates, malicious_fraction: float) -> tuple[RoundUpdates, Tensor | None]:
    """Return a round with mixed updates, and the matrix ``[m, m]`` on the CPU that mixed them.

    Parameters
    ----------
    updates : RoundUpdates
        The round's replies; buffers are mixed as parameters are.
    malicious_fraction : float
        In [0, 1]: this share of the round is left out of each mean, but never all. At 0 the round
        stays as it is, and there is no matrix.
    """
    if not malicious_fraction:
        return updates, None
    m = updates.num_clients
    left_out = min(round(malicious_fraction * m), m - 1)
    mixing = neighbour_mixing(updates.client_updates, left_out)
    mixed = mixing.to(updates.client_updates) @ updates.client_updates
    return (
        replace(
            updates,
            client_updates=mixed,
            squared_norms=mixed.double().square().sum(dim=1).cpu(),
            buffer_updates=mixing.to(updates.buffer_updates) @ updates.buffer_updates,
        ),
        mixing.cpu(),
    )


def unmixed(aggregation: Aggregation, mixing: Tensor | None) -> Aggregation:
    r"""Return what a rule made of mixed updates with weights of the clients' own ones.

    .. math:: p_i = \sum_j q_j M_{ji}
    """
    if mixing is None:
        return aggregation
    applied = aggregation.applied
    return replace(
        aggregation,
        weights=aggregation.weights.double() @ mixing,
        applied=None if applied is None else applied.double() @ mixing,
    )
