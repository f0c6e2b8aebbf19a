"""GTG-Shapley: guided orders, truncation between and within rounds, a stopping rule."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fedif_flower.valuation.shapley.estimate import (
    Estimate,
    exactly,
    mean_of_draws,
    require_draws,
)
from fedif_flower.valuation.shapley.permutation import empty_and_grand, marginal_contributions
from fedif_flower.valuation.shapley.utility import Utility

# The authors' guard against a division by a value of 0.
_TINY = 1e-12


def gtg_shapley(
    utility: Utility,
    num_clients: int,
    *,
    round_truncation: float = 0.01,
    truncation: float = 0.001,
    tolerance: float = 0.05,
    window: int = 10,
    min_permutations: int = 30,
    num_samples: int = 500,
    generator: Generator,
) -> Estimate:
    r"""Estimate the Shapley values by guided truncated gradient Shapley.

    If :math:`|u(N) - u(\emptyset)|` is at most ``round_truncation``, every value is 0. Otherwise
    :math:`\hat\varphi^{(t)}`, the mean of the marginal contributions over the first t orders, is
    refined in sweeps of m orders. In a sweep every client leads once, and the others follow at
    random. No more sweep follows once, after T > ``min_permutations`` orders,

    .. math:: \max_{T - w < t \le T} \frac{1}{m} \sum_i
              \frac{|\hat\varphi^{(t)}_i - \hat\varphi^{(T)}_i|}{|\hat\varphi^{(T)}_i|}
              \le \text{tolerance}

    with w = ``window``. u(N) and :math:`u(\emptyset)` are the utilities of all m clients and of
    none. Within an order, the contributions after the first prefix whose utility is closer to u(N)
    than ``truncation`` count as 0.

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``.
    num_clients : int
        m, >= 1.
    round_truncation, truncation : float
        The least differences that count, >= 0, in units of the utility (the defaults are meant for
        an accuracy in [0, 1]).
    tolerance : float
        How much the running means may still change, relative to the last, >= 0.
    window, min_permutations : int
        The numbers of orders in the stopping rule, >= 1.
    num_samples : int
        No sweep starts after this many orders, >= 1. The first sweep is always completed.
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    Estimate
        Values with their sampling error, which is computed as if the orders were not guided, and
        leaves out the error of truncation. For one or two clients it is 0.

    Raises
    ------
    ValuationError
        If there is not one client, or not one sample.

    References
    ----------
    Liu et al., "GTG-Shapley: Efficient and Accurate Participant Contribution Evaluation in
    Federated Learning", ACM TIST 2022.
    """
    require_draws(num_clients, num_samples)
    empty, grand = utility(empty_and_grand(num_clients)).double()
    if abs(float(grand - empty)) <= round_truncation:
        return exactly(torch.zeros(num_clients, dtype=torch.float64))
    marginals = torch.empty(0, num_clients, dtype=torch.float64)  # [t, m]
    while True:
        sweep = _guided_permutations(num_clients, generator)  # [m, m]
        marginals = torch.cat([marginals, marginal_contributions(utility, sweep, truncation)])
        orders = len(marginals)
        if orders >= num_samples:
            break
        if orders > min_permutations and _relative_change(marginals, window) <= tolerance:
            break
    if num_clients <= 2:  # A sweep has all orders that there are.
        return exactly(marginals.mean(dim=0))
    return mean_of_draws(marginals)


def _guided_permutations(num_clients: int, generator: Generator) -> Tensor:
    """Return m random orders of the clients ``[m, m]``; row i starts with client i."""
    keys = torch.rand(num_clients, num_clients, generator=generator, dtype=torch.float64)
    return keys.fill_diagonal_(-1.0).argsort(dim=1)


def _relative_change(marginals: Tensor, window: int) -> float:
    """Return the largest relative distance of the last ``window`` running means from the last."""
    counts = torch.arange(1, len(marginals) + 1, dtype=torch.float64)
    running_means = marginals.cumsum(dim=0) / counts[:, None]  # [t, m]
    final = running_means[-1]
    errors = (running_means[-window:] - final).abs() / (final.abs() + _TINY)
    return float(errors.mean(dim=1).max())
