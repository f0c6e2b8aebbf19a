"""RFA [Pillutla et al., 2022]: the geometric median of the clients' models."""

from __future__ import annotations

from typing import Any, Unpack

from fedif_flower.aggregators import geometric_median_weights
from fedif_flower.errors import require
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.screened import ScreenedStrategy


class RFA(ScreenedStrategy):
    """RFA: the geometric median of the clients' models.

    Paper: Pillutla et al., *Robust Aggregation for Federated Learning*, 2022.

    Parameters
    ----------
    iterations : int
        Steps of the smoothed Weiszfeld algorithm, >= 0; 0: FedAvg.
    nu : float
        Smoothing of distances, > 0.
    *flower, **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self, *flower: Any, iterations: int = 3, nu: float = 1e-6, **base: Unpack[BaseArguments]
    ) -> None:
        require(iterations >= 0, "iterations", iterations, ">= 0")
        require(nu > 0.0, "nu", nu, "> 0")
        super().__init__(*flower, **base)
        self.iterations = iterations
        self.nu = nu

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return weights ``[m]`` whose mean is the median, starting from FedAvg's."""
        shares = updates.num_examples / updates.num_examples.sum()
        weights = geometric_median_weights(
            updates.client_updates, shares, iterations=self.iterations, nu=self.nu
        )
        return Aggregation(weights=weights.cpu())
