"""The coordinate-wise median [Yin et al., 2018]."""

from __future__ import annotations

from torch import Tensor

from fedif_flower.aggregators.coordinates import coordinate_median
from fedif_flower.round import RoundUpdates
from fedif_flower.strategies.vector_rule import VectorRule


class Median(VectorRule):
    """Move each parameter by the median of the clients' updates.

    Paper: Yin et al., *Byzantine-Robust Distributed Learning*, ICML 2018. Parameters as in
    :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def step(self, updates: RoundUpdates) -> Tensor:
        """Return the median ``[d]``."""
        return coordinate_median(updates.client_updates)
