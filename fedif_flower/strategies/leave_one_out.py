"""Leave-one-out: weights from smoothed leave-one-out values."""

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
    r"""Leave-one-out: weigh by how much worse the round's mean model is without each client.

    .. math:: \phi_i = u(S_t) - u(S_t \setminus i)

    with :math:`S_t` the m clients of round t, and u(C) the utility of the mean of the models of the
    clients C, by default the accuracy on the held-out set (see
    :class:`~fedif_flower.valuation.shapley.valuation.ShapleyValuation`). The values are mapped to
    [0, 1] within the round and smoothed over rounds, starting from 0. A round takes m + 1
    evaluations, the fewest of all valuations by coalitions. Clients that can replace each other all
    have the value 0. The parameters are those of
    :class:`~fedif_flower.strategies.afedsv.AFedSV` without ``sampling``. If ``validation`` is a
    ShapleyValuation, its estimator is replaced by leave-one-out.
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
            # The valuation that was given may have another estimator: this strategy's is fixed.
            shapley = replace(shapley, estimator="leave-one-out")
        super().__init__(shapley, gamma=gamma, weighting=weighting, **base)
