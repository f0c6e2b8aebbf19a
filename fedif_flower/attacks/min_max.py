"""Min-Max: no further from any honest update than the two that are furthest apart."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import ShiftedMean


class MinMax(ShiftedMean):
    r"""All send their mean update, shifted as far as the largest honest distance allows.

    .. math::
        \max \gamma: \quad \max_i \lVert \mu - \gamma \sigma - u_i \rVert
        \le \max_{i, j} \lVert u_i - u_j \rVert

    Each i gives a quadratic inequality in :math:`\gamma`. The smallest of their roots is the exact
    solution, which the paper approaches by halving steps.

    References
    ----------
    Shejwalkar & Houmansadr, 2021 (Manipulating the Byzantine), equation 6, with the inverse
    standard deviation as the direction.
    """

    def shift(self, updates: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        r"""Return the smallest root of the k inequalities, the largest :math:`\gamma` allowed."""
        away = (mean - updates).double()  # [k, d]
        constant = away.square().sum(dim=1) - squared_distances(updates).max()  # [k]
        square = std.double().square().sum().expand(len(updates))
        return largest_root(square, -away @ std.double(), constant).min().to(mean.dtype)


def squared_distances(updates: Tensor) -> Tensor:
    """Return the squared distances ``[k, k]`` between updates ``[k, d]``, float64."""
    return torch.cdist(updates.double(), updates.double()).square()


def largest_root(square: Tensor, linear: Tensor, constant: Tensor) -> Tensor:
    r"""Return the largest :math:`\gamma \ge 0` with :math:`a \gamma^2 + 2 b \gamma + c \le 0`.

    ``square`` is a >= 0, ``linear`` is b and ``constant`` is c <= 0. Where a is 0, 0 is returned.
    """
    # c may be above 0 by rounding.
    root = (linear.square() - square * constant.clamp(max=0)).sqrt() - linear
    return torch.where(square > 0, root / square.clamp_min(torch.finfo(root.dtype).tiny), 0.0)
