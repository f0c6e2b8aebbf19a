"""Shapley values from random orders of the clients, with truncation."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fedif_flower.valuation.shapley.estimate import (
    CoalitionMemo,
    ShapleyEstimate,
    Utility,
    empty_and_grand,
    random_permutations,
    require_clients,
    require_positive,
)


def permutation_shapley(
    utility: Utility,
    num_clients: int,
    *,
    num_samples: int,
    generator: Generator,
) -> ShapleyEstimate:
    r"""Estimate the Shapley values from random orders.

    .. math:: \hat\varphi_i = \frac{1}{M} \sum_{\pi}
              \bigl( u(P_i^\pi \cup \{i\}) - u(P_i^\pi) \bigr)

    with :math:`\pi` one of M uniformly random orders and :math:`P_i^\pi` the clients before i
    in it.

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``.
    num_clients : int
        m, >= 1.
    num_samples : int
        M, >= 1. All M m coalitions are asked for in one call.
    generator : torch.Generator
        Of the CPU.

    Returns
    -------
    ShapleyEstimate
        Values ``[m]``; they sum to u(N) - u(empty).

    Raises
    ------
    ValuationError
        If a parameter is out of range, or the utility answers nonsense.

    References
    ----------
    Ghorbani and Zou, "Data Shapley", ICML 2019, algorithm 1.
    """
    require_clients(num_clients)
    require_positive("num_samples", num_samples)
    memo = CoalitionMemo(utility)
    permutations = random_permutations(num_samples, num_clients, generator)
    return memo.estimate(marginal_contributions(memo, permutations).mean(dim=0))


def marginal_contributions(
    utility: Utility, permutations: Tensor, truncation: float = 0.0
) -> Tensor:
    r"""Return each client's marginal contribution in each order.

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``, float64.
    permutations : Tensor
        ``[p, m]``, int64: orders of the clients.
    truncation : float
        Once :math:`|u(N) - u(P)|` of the clients P so far is below it, the rest of an order counts
        as 0, >= 0; 0: never.

    Returns
    -------
    Tensor
        ``[p, m]``, float64, by client (not by position).
    """
    ranks = permutations.argsort(dim=1)  # [p, m]: position of each client
    values = (
        _truncated_prefix_values(utility, ranks, truncation)
        if truncation > 0.0
        else _prefix_values(utility, ranks)
    )  # [p, m + 1]
    return values.diff(dim=1).gather(1, ranks)


def _prefix_values(utility: Utility, ranks: Tensor) -> Tensor:
    count, num_clients = ranks.shape
    lengths = torch.arange(num_clients + 1)
    prefixes = ranks[:, None, :] < lengths[None, :, None]  # [p, m + 1, m]
    return utility(prefixes.flatten(0, 1)).view(count, num_clients + 1)


def _truncated_prefix_values(utility: Utility, ranks: Tensor, truncation: float) -> Tensor:
    count, num_clients = ranks.shape
    empty, grand = utility(empty_and_grand(num_clients))
    values = torch.empty(count, num_clients + 1, dtype=torch.float64)
    values[:, 0] = empty
    for length in range(1, num_clients + 1):
        values[:, length] = values[:, length - 1]
        running = (grand - values[:, length - 1]).abs() >= truncation  # [p]
        if bool(running.any()):
            values[running, length] = utility(ranks[running] < length)
    return values
