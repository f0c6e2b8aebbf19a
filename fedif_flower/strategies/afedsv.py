"""AFedSV (ShapleyFL) [Sun et al., 2023]: weights from smoothed Shapley values.

It differs from FedIF in its valuation (and in where weight scores start), nothing else.
"""

from __future__ import annotations

from typing import Any, Unpack

from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.scored import ScoredStrategy
from fedif_flower.valuation import Validation
from fedif_flower.valuation.objective import Metric
from fedif_flower.valuation.score_guard import ScoreGuard
from fedif_flower.valuation.shapley.valuation import ShapleyValuation


class AFedSV(ScoredStrategy):
    r"""AFedSV (ShapleyFL): aggregate by smoothed Shapley values.

    .. math:: \Omega_k \leftarrow (1 - \gamma) \Omega_k + \gamma\, \mathrm{minmax}(\phi)_k,
              \qquad \Omega_k = 0.5 \text{ at the start}

    with :math:`\phi` the Shapley values of the round's game (see
    :class:`~fedif_flower.valuation.shapley.valuation.ShapleyValuation`).

    Paper: Sun et al., *ShapleyFL: Robust Federated Learning Based on Shapley Value*, KDD 2023.

    Parameters
    ----------
    validation : Validation
        The server's held-out set D' with model and loss.
    gamma : float
        Rate of the smooth update, in (0, 1].
    initial : float
        Weight score of a client never seen.
    shapley_estimator, shapley_samples, shapley_utility
        The estimator's name and sample count, and ``"accuracy"``, ``"loss"`` or ``"score"`` (the
        validation's own).
    round_normalization, smooth_update, bias_correction, weight_scope, guard, num_clients
        As in :class:`~fedif_flower.strategies.scored.ScoredStrategy`.
    *flower, **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self,
        validation: Validation,
        *flower: Any,
        gamma: float = 0.3,
        initial: float = 0.5,
        shapley_estimator: str = "complementary",
        shapley_samples: int = 50,
        shapley_utility: Metric = "accuracy",
        round_normalization: bool = True,
        smooth_update: bool = True,
        bias_correction: bool = False,
        weight_scope: str = "participants",
        guard: ScoreGuard | None = None,
        num_clients: int | None = None,
        **base: Unpack[BaseArguments],
    ) -> None:
        super().__init__(
            ShapleyValuation(
                validation,
                estimator=shapley_estimator,
                num_samples=shapley_samples,
                utility=shapley_utility,
                seed=base.get("seed", 0),
            ),
            *flower,
            gamma=gamma,
            initial=initial,
            round_normalization=round_normalization,
            smooth_update=smooth_update,
            bias_correction=bias_correction,
            weight_scope=weight_scope,
            guard=guard,
            num_clients=num_clients,
            **base,
        )
