"""Shapley values by Owen's multilinear extension."""

from __future__ import annotations

import torch
from torch import Generator

from fedif_flower.valuation.shapley.estimate import Estimate, mean_of_pairs, require_draws
from fedif_flower.valuation.shapley.utility import Utility


def owen_shapley(
    utility: Utility, num_clients: int, *, num_samples: int = 50, generator: Generator
) -> Estimate:
    r"""Estimate the Shapley values by Owen sampling with antithetic pairs.

    .. math:: \varphi_i = \int_0^1 \mathbb{E}\bigl[ u(S_q \cup \{i\}) - u(S_q \setminus \{i\})
              \bigr] \, dq

    with u the utility and :math:`S_q` a random coalition that each client joins independently with
    probability q. The grid has M points on [0, 1/2], each at a random place in a cell of its own,
    so that the estimate is unbiased for any M. A coalition drawn at q serves all m clients. It is
    used together with its complement, which is a draw at 1 - q. For two clients the values are
    exact.

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``.
    num_clients : int
        m, >= 1.
    num_samples : int
        M, the number of antithetic pairs, >= 1. All 2 M (m + 1) coalitions are passed to the
        utility in one call.
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    Estimate
        Values with their sampling error.

    Raises
    ------
    ValuationError
        If there is not one client, or not one sample.

    References
    ----------
    Okhrati and Lipani, "A Multilinear Sampling Algorithm to Estimate Shapley Values", ICPR 2020.
    """
    require_draws(num_clients, num_samples)
    cells = torch.arange(num_samples, dtype=torch.float64)
    place = torch.rand(num_samples, generator=generator, dtype=torch.float64)
    probability = (cells + place) / (2 * num_samples)  # [M], in [0, 1/2]
    draws = torch.rand(num_samples, num_clients, generator=generator, dtype=torch.float64)
    half = draws < probability[:, None]  # [M, m]
    coalitions = torch.cat([half, ~half])  # [2M, m]
    toggled = coalitions[:, None, :] ^ torch.eye(num_clients, dtype=torch.bool)  # [2M, m, m]

    utilities = utility(torch.cat([coalitions, toggled.flatten(0, 1)])).double()
    as_drawn = utilities[: len(coalitions), None]  # [2M, 1]
    one_toggled = utilities[len(coalitions) :].view(-1, num_clients)  # [2M, m]
    marginals = torch.where(coalitions, as_drawn - one_toggled, one_toggled - as_drawn)
    below, above = marginals.chunk(2)  # [M, m] each: at q, and at 1 - q.
    return mean_of_pairs((below + above) / 2)
