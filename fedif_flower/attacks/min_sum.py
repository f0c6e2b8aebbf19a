"""Min-Sum: no further from all honest updates, by the sum of squares, than any honest one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import ShiftedMean
from fedif_flower.attacks.min_max import largest_root, squared_distances


class MinSum(ShiftedMean):
    r"""All send their mean update, shifted as far as the largest sum of squared distances allows.

    .. math::
        \max \gamma: \quad \sum_i \lVert \mu - \gamma \sigma - u_i \rVert^2
        \le \max_i \sum_j \lVert u_i - u_j \rVert^2

    References
    ----------
    Shejwalkar & Houmansadr, 2021 (Manipulating the Byzantine), equation 7.
    """

    def shift(self, updates: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Return the root of the inequality."""
        # The linear term is 0, since the deviations from the mean sum to 0.
        square = len(updates) * std.double().square().sum()
        farthest = squared_distances(updates).sum(dim=1).max()
        constant = (mean - updates).double().square().sum() - farthest
        return largest_root(square, torch.zeros_like(square), constant).to(mean.dtype)
