"""Min-Sum: no further from all honest updates together than the furthest honest one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.attacks.min_max import largest_root, spread


class MinSum(Colluder):
    r"""All send :math:`\mu - \gamma \sigma`, as far out as the largest sum of distances allows.

    .. math::
        \max \gamma: \quad \sum_i \lVert \mu - \gamma \sigma - u_i \rVert^2
        \le \max_i \sum_j \lVert u_i - u_j \rVert^2

    Symbols as in :class:`~fedif_flower.attacks.min_max.MinMax`.

    References
    ----------
    Shejwalkar & Houmansadr, 2021 (Manipulating the Byzantine), equation 7.
    """

    def collude(
        self,
        received: Tensor,  # noqa: ARG002
        updates: Tensor,
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        """Return the shifted mean ``[k, d]``, the same for all."""
        mean, std, distances = spread(updates)
        # The deviations from the mean add up to zero, and so the linear term vanishes.
        square = len(updates) * std.double().square().sum()
        constant = (mean - updates).double().square().sum() - distances.sum(dim=1).max()
        gamma = largest_root(square, torch.zeros_like(square), constant)
        return (mean - gamma.to(mean.dtype) * std).expand_as(updates)
