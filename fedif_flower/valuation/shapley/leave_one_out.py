"""Leave-one-out values: what the utility loses without a client."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.valuation.shapley.utility import Utility


def leave_one_out(utility: Utility, num_clients: int, **_: object) -> Tensor:
    r"""Return each client's marginal contribution to all others, ``[m]``.

    .. math:: v_i = u(N) - u(N \setminus \{i\})

    with N the m clients and u the utility. All m + 1 coalitions are evaluated in one call. This is
    not a Shapley value: it looks at the largest coalitions only, and gives two equal clients 0 each
    if one of them suffices.

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``.
    num_clients : int
        m, >= 1.
    **_
        The arguments of other estimators, which are ignored.

    References
    ----------
    Cook, "Detection of influential observation in linear regression", 1977.
    """
    grand = torch.ones(1, num_clients, dtype=torch.bool)
    utilities = utility(torch.cat([grand, ~torch.eye(num_clients, dtype=torch.bool)])).double()
    return utilities[0] - utilities[1:]
