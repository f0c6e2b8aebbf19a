"""Shapley values from complementary contributions: the estimator of AFedSV."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from fedif_flower.valuation.shapley.estimate import Estimate, require_draws
from fedif_flower.valuation.shapley.permutation import random_permutations
from fedif_flower.valuation.shapley.utility import Utility


def complementary_shapley(
    utility: Utility, num_clients: int, *, num_samples: int = 50, generator: Generator
) -> Estimate:
    r"""Estimate the Shapley values by stratified complementary contributions.

    The stratum (k, s) holds the samples for client k in coalitions of size s. M times, for each
    j = 1..m, the first j clients of a new random order form L, the others R. Then
    :math:`\delta = u(L) - u(R)`, with u the utility, is a sample of the stratum (k, \|L\|) for each
    k in L, and :math:`-\delta` is one of the stratum (k, \|R\|) for each k in R. The estimates are

    .. math:: \hat\varphi_k = \frac{1}{m} \sum_{s=1}^{m} \operatorname{mean}(\text{stratum}(k, s))

    A stratum without a sample counts as 0, as in the authors' code; at M = 50 that is rare.

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``.
    num_clients : int
        m, >= 1.
    num_samples : int
        M, >= 1. All 2 M m coalitions are passed to the utility in one call, the empty and the grand
        one M times each.
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    Estimate
        Values with their sampling error. A draw's residual is its distance from the mean of its
        stratum, divided by :math:`m \sqrt{n (n - 1)}` for n draws in the stratum. If n is 1, it is
        the distance from the mean of all clients' draws of that size, divided by m. If n is 0, the
        stratum has a residual: that mean divided by m.

    Raises
    ------
    ValuationError
        If there is not one client, or not one sample.

    References
    ----------
    Sun et al., "ShapleyFL: Robust Federated Learning Based on Shapley Value", KDD 2023;
    Zhang et al., "Efficient Sampling Approaches to Shapley Value Approximation", SIGMOD 2023.
    """
    require_draws(num_clients, num_samples)
    sizes = torch.arange(1, num_clients + 1).repeat(num_samples)  # [M m]
    # Each client's position in the order: the inverse of a uniformly random order is also one.
    ranks = random_permutations(len(sizes), num_clients, generator)  # [M m, m]
    left = ranks < sizes[:, None]  # [M m, m]
    left_utility, right_utility = utility(torch.cat([left, ~left])).double().chunk(2)
    delta = (left_utility - right_utility)[:, None]  # [M m, 1]

    is_left = left.double()
    is_right = (~left).double()
    left_size = one_hot(sizes, num_clients + 1).double()  # [M m, m + 1]
    right_size = one_hot(num_clients - sizes, num_clients + 1).double()
    sums = (is_left * delta).T @ left_size - (is_right * delta).T @ right_size  # [m, m + 1]
    counts = is_left.T @ left_size + is_right.T @ right_size
    means = sums / counts.clamp_min(1.0)  # [m, m + 1]
    # Each draw gives every client k one sample, in the stratum (k, size of k's side).
    samples = torch.where(left, delta, -delta)  # [M m, m]
    strata = torch.where(left, sizes[:, None], num_clients - sizes[:, None])  # [M m, m]
    residuals = _residuals(samples, strata, sums, counts)
    return Estimate(means.sum(dim=1) / num_clients, residuals)


def _residuals(samples: Tensor, strata: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    """Return the residuals of the draws, and of the strata that have no draw.

    Parameters
    ----------
    samples, strata : Tensor
        ``[draws, m]``: each draw's sample for each client, and the size of the client's side.
    sums, counts : Tensor
        ``[m, m + 1]``: the sum and the number of the samples, by client and size.

    Returns
    -------
    Tensor
        ``[draws + lacking, m]``: a row for each draw, then one for each size that some client has
        no draw of.
    """
    means = sums / counts.clamp_min(1.0)  # [m, m + 1]
    stratum_counts = counts.T.gather(0, strata)  # [draws, m]
    # A single draw says nothing about its own error: its distance from the mean of all clients'
    # draws of that size is taken instead. n >= 2 draws have n - 1 degrees of freedom.
    size_means = sums.sum(dim=0) / counts.sum(dim=0).clamp_min(1.0)  # [m + 1]
    expected = torch.where(stratum_counts > 1, means.T.gather(0, strata), size_means[strata])
    divisors = (stratum_counts * (stratum_counts - 1).clamp_min(1.0)).sqrt()
    error_of_draw = (samples - expected) / divisors  # [draws, m]
    # A stratum without a draw counts as 0, so its error is its true mean. The mean of all clients'
    # draws of that size is taken for it.
    lacking = torch.where(counts == 0, size_means, 0.0).T  # [m + 1, m]
    errors = torch.cat([error_of_draw, lacking[lacking.any(dim=1)]])
    return errors / samples.shape[1]
