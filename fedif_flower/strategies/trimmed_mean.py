"""The coordinate-wise trimmed mean [Yin et al., 2018]."""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor

from fedif_flower.aggregators.coordinates import trimmed_mean
from fedif_flower.errors import require
from fedif_flower.round import RoundUpdates
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.vector_rule import VectorRule


class TrimmedMean(VectorRule):
    """Move each parameter by the mean of the updates without the least and the largest.

    Paper: Yin et al., *Byzantine-Robust Distributed Learning*, ICML 2018.

    Parameters
    ----------
    malicious_fraction : float
        Assumed share of malicious clients, in [0, 1]: so many are left out at either end, but
        always less than half.
    *flower, **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self, *flower: Any, malicious_fraction: float = 0.2, **base: Unpack[BaseArguments]
    ) -> None:
        in_range = 0.0 <= malicious_fraction <= 1.0
        require(in_range, "malicious_fraction", malicious_fraction, "0 to 1")
        super().__init__(*flower, **base)
        self.malicious_fraction = malicious_fraction

    def step(self, updates: RoundUpdates) -> Tensor:
        """Return the trimmed mean ``[d]``."""
        m = updates.num_clients
        num_trimmed = min(round(self.malicious_fraction * m), (m - 1) // 2)
        return trimmed_mean(updates.client_updates, num_trimmed)
