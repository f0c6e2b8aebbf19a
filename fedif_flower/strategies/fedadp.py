"""FedAdp [Wu and Wang, 2021]: weights from each update's angle to the global one."""

from __future__ import annotations

from typing import Any, Unpack

from fedif_flower.aggregators import FedAdp as FedAdpRule
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.state import Stateful


class FedAdp(ScreenedStrategy):
    """FedAdp: weights by the running mean of each client's angle to the global update.

    Paper: Wu and Wang, *Fast-Convergent Federated Learning with Adaptive Weighting*, 2021.

    Parameters
    ----------
    alpha : float
        Steepness of the weights, > 0.
    *flower, **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(self, *flower: Any, alpha: float = 5.0, **base: Unpack[BaseArguments]) -> None:
        super().__init__(*flower, **base)
        self.rule = FedAdpRule(alpha)

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds: the angles too."""
        return super().stateful() | {"rule": self.rule}

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights ``[m]``; a smaller mean angle is the larger weight score."""
        weights = self.rule.weights(
            updates.client_ids, updates.client_updates, updates.num_examples
        )
        angles = self.rule.angles_of(updates.client_ids)
        return Aggregation(weights=weights, weight_scores=-angles)
