"""The coordinate-wise median [Yin et al., 2018]."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedif_flower.aggregators.trimmed_mean import trimmed_mean
from fedif_flower.round import RoundUpdates


@dataclass(frozen=True)
class Median:
    """Move each parameter by the median of the clients' updates."""

    def __call__(self, updates: RoundUpdates) -> Tensor:
        """Return the median ``[d]``."""
        return coordinate_median(updates.client_updates)


def coordinate_median(updates: Tensor) -> Tensor:
    """Return the median of each coordinate, of an even number the mean of the middle two.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, m >= 1, finite.

    Returns
    -------
    Tensor
        ``[d]``, same dtype.

    References
    ----------
    Yin et al., 2018 (Byzantine-robust distributed learning), definition 1.
    """
    return trimmed_mean(updates, (len(updates) - 1) // 2)
