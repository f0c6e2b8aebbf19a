"""Min-Max: as far from the mean as the two honest updates that are furthest apart."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder


def largest_root(square: Tensor, linear: Tensor, constant: Tensor) -> Tensor:
    r"""Return the largest :math:`\gamma \ge 0` with :math:`a \gamma^2 + 2 b \gamma + c \le 0`.

    Parameters
    ----------
    square, linear, constant : Tensor
        a >= 0, b and c <= 0, of one shape. Where a is 0, so is the answer.
    """
    root = (linear.square() - square * constant.clamp(max=0)).sqrt() - linear
    return torch.where(square > 0, root / square.clamp_min(torch.finfo(root.dtype).tiny), 0.0)


class MinMax(Colluder):
    r"""All send :math:`\mu - \gamma \sigma`, as far out as the largest honest distance allows.

    .. math::
        \max \gamma: \quad \max_i \lVert \mu - \gamma \sigma - u_i \rVert
        \le \max_{i, j} \lVert u_i - u_j \rVert

    :math:`u_i` are what the accomplices trained honestly, :math:`\mu` and :math:`\sigma` their mean
    and standard deviation by coordinate. Each i gives a quadratic inequality in
    :math:`\gamma`; the smallest of their roots is what the paper approaches by halving steps.

    References
    ----------
    Shejwalkar & Houmansadr, 2021 (Manipulating the Byzantine), equation 6, with the inverse
    standard deviation as the direction.
    """

    def collude(
        self,
        received: Tensor,  # noqa: ARG002
        updates: Tensor,
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        """Return the shifted mean ``[k, d]``, the same for all."""
        mean, std, distances = spread(updates)
        away = (mean - updates).double()  # [k, d]
        gamma = largest_root(
            std.double().square().sum().expand(len(updates)),
            -away @ std.double(),
            away.square().sum(dim=1) - distances.max(),
        ).min()
        return (mean - gamma.to(mean.dtype) * std).expand_as(updates)


def spread(updates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean ``[d]``, standard deviation ``[d]``, squared distances ``[k, k]``."""
    distances = torch.cdist(updates.double(), updates.double()).square()
    return updates.mean(dim=0), updates.std(dim=0, correction=0), distances
