"""Shapley values from random orders of the clients, with truncation."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fedif_flower.valuation.shapley.estimate import Estimate, mean_of_pairs, require_draws
from fedif_flower.valuation.shapley.utility import Utility


def permutation_shapley(
    utility: Utility, num_clients: int, *, num_samples: int, generator: Generator
) -> Estimate:
    r"""Estimate the Shapley values from random orders, each with its reverse.

    .. math:: \hat\varphi_i = \frac{1}{M} \sum_{\pi}
              \bigl( u(P_i^\pi \cup \{i\}) - u(P_i^\pi) \bigr)

    with u the utility, :math:`\pi` one of M orders, half of them uniformly random and half their
    reverses, and :math:`P_i^\pi` the clients before i in that order. A client that comes early in
    an order comes late in its reverse, so that the two errors mostly have opposite signs. For two
    clients a pair is both orders there are: the values are exact.

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``.
    num_clients : int
        m, >= 1.
    num_samples : int
        M, >= 1; an odd number counts as the next even one. All M (m + 1) coalitions are passed to
        the utility in one call, the empty and the grand one once for each order.
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    Estimate
        Values that sum to u(N) - u(empty), with their sampling error.

    Raises
    ------
    ValuationError
        If there is not one client, or not one sample.

    References
    ----------
    Ghorbani and Zou, "Data Shapley", ICML 2019, algorithm 1; Mitchell et al., "Sampling
    Permutations for Shapley Value Estimation", JMLR 2022, on pairs.
    """
    require_draws(num_clients, num_samples)
    pairs = -(-num_samples // 2)
    orders = random_permutations(pairs, num_clients, generator)  # [M / 2, m]
    marginals = marginal_contributions(utility, torch.cat([orders, orders.flip(1)]))  # [M, m]
    forward, backward = marginals.chunk(2)
    return mean_of_pairs((forward + backward) / 2)


def marginal_contributions(
    utility: Utility, permutations: Tensor, truncation: float = 0.0
) -> Tensor:
    r"""Return each client's marginal contribution in each order.

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``.
    permutations : Tensor
        ``[p, m]``, int64: orders of the clients.
    truncation : float
        >= 0. Once :math:`|u(N) - u(P)|`, for the first clients P of an order, is below it, the
        contributions of the rest count as 0. With 0, nothing is truncated.

    Returns
    -------
    Tensor
        ``[p, m]``, float64, by client (not by position).
    """
    ranks = permutations.argsort(dim=1)  # [p, m]: position of each client
    if truncation > 0.0:
        values = _truncated_prefix_values(utility, ranks, truncation)  # [p, m + 1]
    else:
        lengths = torch.arange(ranks.shape[1] + 1)
        prefixes = ranks[:, None, :] < lengths[None, :, None]  # [p, m + 1, m]
        values = utility(prefixes.flatten(0, 1)).double().view(len(ranks), -1)  # [p, m + 1]
    return values.diff(dim=1).gather(1, ranks)


def _truncated_prefix_values(utility: Utility, ranks: Tensor, truncation: float) -> Tensor:
    """Return the utility of each order's first 0 to m clients, ``[p, m + 1]``.

    Once it is closer to the grand coalition's than ``truncation``, it stays as it is.
    """
    count, num_clients = ranks.shape
    empty, grand = utility(empty_and_grand(num_clients)).double()
    values = torch.empty(count, num_clients + 1, dtype=torch.float64)
    values[:, 0] = empty
    for length in range(1, num_clients + 1):
        values[:, length] = values[:, length - 1]
        running = (grand - values[:, length - 1]).abs() >= truncation  # [p]
        if bool(running.any()):
            values[running, length] = utility(ranks[running] < length).double()
    return values


def empty_and_grand(num_clients: int) -> Tensor:
    """Return the masks of the empty and of the grand coalition, ``[2, m]``."""
    return torch.tensor([False, True])[:, None].repeat(1, num_clients)


def random_permutations(count: int, num_clients: int, generator: Generator) -> Tensor:
    """Return ``count`` uniformly random orders of the clients, ``[count, m]``, int64."""
    keys = torch.rand(count, num_clients, generator=generator, dtype=torch.float64)
    return keys.argsort(dim=1)
