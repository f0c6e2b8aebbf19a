"""FedSV [Wang et al., 2020]: weights from the round's Shapley values alone."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import Unpack

from fedif_flower.server.setup import BaseArguments, seed_of
from fedif_flower.strategies.scored import FullWeighting, ScoredStrategy, Weighting, valuation_on
from fedif_flower.valuation import Validation, Valuation
from fedif_flower.valuation.ledger import Gamma
from fedif_flower.valuation.shapley.valuation import SampledOrders


class FedSV(ScoredStrategy):
    """FedSV: weigh by the round's Shapley values alone, without smoothing.

    Paper: Wang et al., *A Principled Approach to Data Valuation for Federated Learning*, 2020.

    The paper values clients, and does not weigh by the values. Other authors who weigh by them take
    their softmax. Here min-max maps them to [0, 1], as in
    :class:`~fedif_flower.strategies.afedsv.AFedSV`, so that the two differ in smoothing, and in the
    estimator that they use by default. The round's worst client has weight 0. But if the values
    differ by no more than the sampling makes equal values differ, all weights are equal. By default
    50 permutations are sampled, as in the paper; here each random permutation is used together with
    its reverse.

    The parameters are those of :class:`~fedif_flower.strategies.afedsv.AFedSV` without
    ``sampling``; ``gamma`` has no effect.
    """

    made_of = MappingProxyType({"weighting": None, "gamma": None, "validation": SampledOrders})
    default_weighting = FullWeighting(smooth_update=False)

    def __init__(
        self,
        validation: Validation | Valuation,
        *,
        gamma: Gamma = 0.3,
        weighting: Weighting | None = None,
        **base: Unpack[BaseArguments],
    ) -> None:
        shapley = valuation_on(self, validation, partial(SampledOrders, seed=seed_of(base)))
        super().__init__(shapley, gamma=gamma, weighting=weighting, **base)
