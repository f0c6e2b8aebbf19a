"""Divide and conquer [Shejwalkar & Houmansadr, 2021]."""

from __future__ import annotations

from typing import Any, Unpack

from fedif_flower.aggregators.dnc import dnc_weights
from fedif_flower.errors import require
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.seeding import torch_generator
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.screened import ScreenedStrategy


class DnC(ScreenedStrategy):
    """Average the updates that do not stand out along the main direction of their spread.

    Paper: Shejwalkar & Houmansadr, *Manipulating the Byzantine*, NDSS 2021.

    Parameters
    ----------
    malicious_fraction : float
        Assumed share of malicious clients, in [0, 1].
    iterations : int
        Random sets of coordinates that are looked at, >= 1.
    *flower, **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self,
        *flower: Any,
        malicious_fraction: float = 0.2,
        iterations: int = 1,
        **base: Unpack[BaseArguments],
    ) -> None:
        in_range = 0.0 <= malicious_fraction <= 1.0
        require(in_range, "malicious_fraction", malicious_fraction, "0 to 1")
        require(iterations >= 1, "iterations", iterations, ">= 1")
        super().__init__(*flower, **base)
        self.malicious_fraction = malicious_fraction
        self.iterations = iterations

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return equal weights ``[m]`` for those that are kept."""
        weights = dnc_weights(
            updates.client_updates,
            round(self.malicious_fraction * updates.num_clients),
            torch_generator("dnc", self.seed, updates.server_round),
            iterations=self.iterations,
        )
        return Aggregation(weights=weights)
