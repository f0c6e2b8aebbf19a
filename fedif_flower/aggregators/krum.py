"""Krum and Multi-Krum: the models that lie nearest to their neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import pairwise_squared_distances
from fedif_flower.errors import ValuationError


def krum_scores(updates: Tensor, num_malicious: int) -> Tensor:
    r"""Return each client's Krum score; less is better.

    .. math:: s_i = \sum_{j \in \mathcal{N}_i} \lVert x_i - x_j \rVert^2

    with :math:`x_i` client i's update and :math:`\mathcal{N}_i` its m - f - 2 nearest
    neighbours, at least one where there is another client at all.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, m >= 1, finite. Only differences count, so the clients' models give the same
        scores as their updates.
    num_malicious : int
        f, >= 0. The guarantee needs 2f + 2 < m, which the caller checks.

    Returns
    -------
    Tensor
        ``[m]``, float64; zeros if m = 1.

    Raises
    ------
    ValuationError
        If f is negative, or ``updates`` has NaN or Inf.

    References
    ----------
    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    NeurIPS 2017.
    """
    if num_malicious < 0:
        raise ValuationError(f"num_malicious is {num_malicious}; allowed: >= 0")
    distances = pairwise_squared_distances(updates)  # [m, m]
    m = distances.shape[0]
    num_neighbours = min(max(m - num_malicious - 2, 1), m - 1)
    distances.fill_diagonal_(torch.inf)  # nobody is its own neighbour
    return distances.topk(num_neighbours, dim=1, largest=False).values.sum(dim=1)


def select_lowest(scores: Tensor, num_selected: int = 1) -> Tensor:
    """Return equal weights for the ``num_selected`` lowest scores, 0 for the others.

    Parameters
    ----------
    scores : Tensor
        ``[m]``; of equal scores the first is taken.
    num_selected : int
        In [1, m]; Krum takes 1, Multi-Krum m - f.

    Returns
    -------
    Tensor
        ``[m]``, float64, >= 0, sums to 1.

    Raises
    ------
    ValuationError
        If ``num_selected`` is out of range.
    """
    m = scores.shape[0]
    if not 1 <= num_selected <= m:
        raise ValuationError(f"num_selected is {num_selected}; allowed: 1 to {m}")
    weights = torch.zeros(m, dtype=torch.float64, device=scores.device)
    weights[scores.argsort(stable=True)[:num_selected]] = 1.0 / num_selected
    return weights


def krum_weights(updates: Tensor, num_malicious: int, num_selected: int = 1) -> Tensor:
    """Return Krum's (or, with ``num_selected`` > 1, Multi-Krum's) aggregation weights.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, finite.
    num_malicious : int
        f, >= 0.
    num_selected : int
        In [1, m].

    Returns
    -------
    Tensor
        ``[m]``, float64: 1 / ``num_selected`` for the best scores, 0 for the others.

    Raises
    ------
    ValuationError
        See :func:`krum_scores` and :func:`select_lowest`.
    """
    return select_lowest(krum_scores(updates, num_malicious), num_selected)
