"""Exact Shapley values, by enumeration of all coalitions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.valuation.shapley.utility import Utility

MAX_CLIENTS = 20  # 2**20, a million, coalitions.


def exact_shapley(utility: Utility, num_clients: int, **_: object) -> Tensor:
    r"""Return the Shapley values ``[m]`` from all :math:`2^m` coalitions, evaluated in one call.

    .. math:: \varphi_i = \sum_{S \subseteq N \setminus \{i\}}
              \frac{u(S \cup \{i\}) - u(S)}{m \binom{m - 1}{|S|}}

    with N the m clients and u the utility. They sum to u(N) - u(empty).

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``.
    num_clients : int
        m, in [1, 20].
    **_
        The arguments of other estimators, which are ignored.

    Raises
    ------
    ValuationError
        If m > 20.

    References
    ----------
    Shapley, "A value for n-person games", 1953.
    """
    if num_clients > MAX_CLIENTS:
        raise ValuationError(
            f"exact_shapley with {num_clients} clients needs 2**{num_clients} evaluations; "
            f"allowed: num_clients <= {MAX_CLIENTS}; use complementary_shapley or "
            "permutation_shapley instead"
        )
    masks = all_coalitions(num_clients)  # [2**m, m]
    utilities = utility(masks).double()  # [2**m]
    weights_by_size = [
        1.0 / (num_clients * math.comb(num_clients - 1, size)) for size in range(num_clients)
    ]
    weights = torch.tensor(weights_by_size, dtype=torch.float64)  # [m]
    sizes = masks.sum(dim=1)  # [2**m]
    values = []
    for is_member in masks.T:
        # Rows with the client, and rows without it, have the other members in the same order.
        marginals = utilities[is_member] - utilities[~is_member]  # [2**(m - 1)]
        values.append(weights[sizes[~is_member]] @ marginals)
    return torch.stack(values)


def all_coalitions(num_clients: int) -> Tensor:
    """Return all masks ``[2**m, m]``: client i is in row r if bit i of r is set."""
    rows = torch.arange(2**num_clients)[:, None]
    return (rows >> torch.arange(num_clients) & 1).bool()
