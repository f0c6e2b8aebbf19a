"""Weights from smoothed leave-one-out values."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Unpack

from fedif_flower.server.setup import BaseArguments, seed_of
from fedif_flower.strategies.scored import ScoredStrategy, Weighting, valuation_on
from fedif_flower.valuation import Validation, Valuation
from fedif_flower.valuation.ledger import Gamma
from fedif_flower.valuation.shapley.valuation import ShapleyValuation

LEAVE_ONE_OUT = partial(ShapleyValuation, estimator="leave-one-out", num_samples=1)


class LeaveOneOut(ScoredStrategy):
    r"""Weigh by smoothed leave-one-out values, from 0.

    .. math:: u(S_t) - u(S_t \setminus i)

    It takes m + 1 evaluations per round, the fewest of all valuations by coalitions. Clients that
    can replace each other all get 0. Parameters as in
    :class:`~fedif_flower.strategies.afedsv.AFedSV`.
    """

    made_of = MappingProxyType(
        {
            **ScoredStrategy.made_of,
            "validation": LEAVE_ONE_OUT,
        }
    )

    def __init__(
        self,
        validation: Validation | Valuation,
        *,
        gamma: Gamma = 0.3,
        weighting: Weighting | None = None,
        **base: Unpack[BaseArguments],
    ) -> None:
        shapley = valuation_on(self, validation, partial(LEAVE_ONE_OUT, seed=seed_of(base)))
        if isinstance(shapley, ShapleyValuation):
            # Whatever estimator it was given with.
            shapley = replace(shapley, estimator="leave-one-out")
        super().__init__(shapley, gamma=gamma, weighting=weighting, **base)
