"""Weights from smoothed leave-one-out values."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType

from fedif_flower.strategies.scored import ScoredStrategy
from fedif_flower.valuation import Validation, Valuation
from fedif_flower.valuation.shapley.valuation import ShapleyValuation


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
            "validation": partial(ShapleyValuation, estimator="leave-one-out", num_samples=1),
        }
    )

    def valued(self, validation: Validation | Valuation, seed: int) -> Valuation:
        """Return leave-one-out values on a validation set, whatever the estimator was."""
        given = super().valued(validation, seed)
        if not isinstance(given, ShapleyValuation):
            return given
        return replace(given, estimator="leave-one-out")
