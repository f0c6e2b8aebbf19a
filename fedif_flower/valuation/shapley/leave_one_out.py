"""Leave-one-out values: what the utility loses without a client."""

from __future__ import annotations

import torch

from fedif_flower.valuation.shapley.estimate import (
    CoalitionMemo,
    ShapleyEstimate,
    Utility,
    require_clients,
)


def leave_one_out(utility: Utility, num_clients: int) -> ShapleyEstimate:
    r"""Return each client's marginal contribution to all others, in one call.

    .. math:: v_i = u(N) - u(N \setminus \{i\})

    with N the m clients and u the utility. Not a Shapley value: it looks at the largest
    coalitions only, and gives twins 0 each when one of them suffices.

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``.
    num_clients : int
        m, >= 1.

    Returns
    -------
    ShapleyEstimate
        Values ``[m]``.

    Raises
    ------
    ValuationError
        If m = 0, or the utility answers nonsense.

    References
    ----------
    Cook, "Detection of influential observation in linear regression", 1977.
    """
    require_clients(num_clients)
    memo = CoalitionMemo(utility)
    grand = torch.ones(1, num_clients, dtype=torch.bool)
    utilities = memo(torch.cat([grand, ~torch.eye(num_clients, dtype=torch.bool)]))
    return memo.estimate(utilities[0] - utilities[1:])
