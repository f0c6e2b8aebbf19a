"""Weights from smoothed leave-one-out values."""

from __future__ import annotations

from typing import Any, Unpack

from fedif_flower.strategies.afedsv import AFedSV
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.valuation import Validation
from fedif_flower.valuation.objective import Metric


class LeaveOneOut(AFedSV):
    r"""Weigh by smoothed leave-one-out values :math:`u(S_t) - u(S_t \setminus i)`, from 0.

    It takes m + 1 evaluations per round, the fewest of all valuations by coalitions. Clients that
    can replace each other all get 0.
    """

    def __init__(
        self,
        validation: Validation,
        *flower: Any,
        gamma: float = 0.3,
        shapley_utility: Metric = "accuracy",
        **base: Unpack[BaseArguments],
    ) -> None:
        super().__init__(
            validation,
            *flower,
            gamma=gamma,
            initial=0.0,
            shapley_estimator="leave-one-out",
            shapley_utility=shapley_utility,
            **base,
        )
