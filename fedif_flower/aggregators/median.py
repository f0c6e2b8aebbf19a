"""The coordinate-wise median [Yin et al., 2018]."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedif_flower.aggregators.trimmed_mean import trimmed_mean
from fedif_flower.round import RoundUpdates


@dataclass(frozen=True)
class Median:
    """Move each parameter by the median of the clients' updates.

    The median of an even number of updates is the mean of the middle two.

    References
    ----------
    Yin et al., 2018 (Byzantine-robust distributed learning), definition 1.
    """

    def __call__(self, updates: RoundUpdates) -> Tensor:
        """Return the median ``[d]``."""
        return trimmed_mean(updates.client_updates, (updates.num_clients - 1) // 2)
