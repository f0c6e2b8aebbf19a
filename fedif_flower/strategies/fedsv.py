"""FedSV [Wang et al., 2020]: weights from the round's own Shapley values."""

from __future__ import annotations

from typing import Any, Unpack

from fedif_flower.strategies.afedsv import AFedSV
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.valuation import Validation
from fedif_flower.valuation.objective import Metric


class FedSV(AFedSV):
    """Weigh by the round's own Shapley values: AFedSV without smoothing, starting from 0.

    Paper: Wang et al., *A Principled Approach to Data Valuation for Federated Learning*, 2020.

    The paper values clients and does not weigh by the values. Others who do so take their softmax.
    Here min-max maps them to [0, 1], as for AFedSV: the two then differ in smoothing alone, and the
    round's worst client has weight 0.
    """

    def __init__(
        self,
        validation: Validation,
        *flower: Any,
        shapley_estimator: str = "permutation",
        shapley_samples: int = 50,
        shapley_utility: Metric = "accuracy",
        **base: Unpack[BaseArguments],
    ) -> None:
        super().__init__(
            validation,
            *flower,
            initial=0.0,
            smooth_update=False,
            shapley_estimator=shapley_estimator,
            shapley_samples=shapley_samples,
            shapley_utility=shapley_utility,
            **base,
        )
