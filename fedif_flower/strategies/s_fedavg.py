"""Strategies whose scores are Shapley values, or leave-one-out ones.

AFedSV differs from FedIF in its valuation (and in where contributions start), nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch

from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.contribution import ContributionStrategy
from fedif_flower.strategies.nodes import ClientNode, sample_clients
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.state import Stateful
from fedif_flower.valuation import Validation
from fedif_flower.valuation.coalitions import Metric
from fedif_flower.valuation.ledger import ContributionLedger
from fedif_flower.valuation.shapley.valuation import ShapleyValuation

_LEAST_CHANCE = 1e-12  # Of being drawn, in S-FedAvg.


class AFedSV(ContributionStrategy):
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
        Contribution of a client never seen.
    shapley_estimator, shapley_samples, shapley_utility
        The estimator's name and sample count, and ``"accuracy"`` or ``"loss"``.
    round_normalization, smooth_update, weight_scope, num_clients
        As in :class:`~fedif_flower.strategies.contribution.ContributionStrategy`.
    **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self,
        validation: Validation,
        *,
        gamma: float = 0.3,
        initial: float = 0.5,
        shapley_estimator: str = "complementary",
        shapley_samples: int = 50,
        shapley_utility: Metric = "accuracy",
        round_normalization: bool = True,
        smooth_update: bool = True,
        weight_scope: str = "participants",
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
            gamma=gamma,
            initial=initial,
            round_normalization=round_normalization,
            smooth_update=smooth_update,
            weight_scope=weight_scope,
            num_clients=num_clients,
            **base,
        )


class FedSV(AFedSV):
    """Weigh by the round's own Shapley values: AFedSV without smoothing, starting from 0.

    Paper: Wang et al., *A Principled Approach to Data Valuation for Federated Learning*, 2020.
    """

    def __init__(
        self,
        validation: Validation,
        *,
        shapley_estimator: str = "permutation",
        shapley_samples: int = 50,
        shapley_utility: Metric = "accuracy",
        **base: Unpack[BaseArguments],
    ) -> None:
        super().__init__(
            validation,
            initial=0.0,
            smooth_update=False,
            shapley_estimator=shapley_estimator,
            shapley_samples=shapley_samples,
            shapley_utility=shapley_utility,
            **base,
        )


class LeaveOneOut(AFedSV):
    r"""Weigh by smoothed leave-one-out values :math:`u(S_t) - u(S_t \setminus i)`, from 0.

    m + 1 evaluations a round: the cheapest valuation by coalitions, blind to clients that
    replace each other.
    """

    def __init__(
        self,
        validation: Validation,
        *,
        gamma: float = 0.3,
        shapley_utility: Metric = "accuracy",
        **base: Unpack[BaseArguments],
    ) -> None:
        super().__init__(
            validation,
            gamma=gamma,
            initial=0.0,
            shapley_estimator="leave-one-out",
            shapley_utility=shapley_utility,
            **base,
        )


class SFedAvg(ScreenedStrategy):
    r"""S-FedAvg: draw clients by their relevance, average those drawn as FedAvg does.

    .. math:: \varphi_k \leftarrow \alpha \varphi_k + (1 - \alpha) s_k, \qquad
              P(k) = e^{\varphi_k} / \sum_j e^{\varphi_j}

    with :math:`s_k` the round's Shapley value of client k (in units of the utility),
    :math:`\varphi_k = 1 / K` at the start and K the clients online.

    Paper: Nagalapatti and Narayanam, *Game of Gradients: Mitigating Irrelevant Clients in
    Federated Learning*, AAAI 2021.

    Parameters
    ----------
    validation : Validation
        The server's held-out set D' with model and loss.
    alpha : float
        Share of the old relevance that stays, in [0, 1).
    shapley_estimator, shapley_samples, shapley_utility
        As in :class:`AFedSV`.
    **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self,
        validation: Validation,
        *,
        alpha: float = 0.75,
        shapley_estimator: str = "permutation",
        shapley_samples: int = 50,
        shapley_utility: Metric = "accuracy",
        **base: Unpack[BaseArguments],
    ) -> None:
        base.setdefault("trainable_keys", validation.parameter_names)
        super().__init__(**base)
        self.valuation = ShapleyValuation(
            validation,
            estimator=shapley_estimator,
            num_samples=shapley_samples,
            utility=shapley_utility,
            seed=self.seed,
        )
        self.ledger = ContributionLedger(1.0 - alpha)

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds: the relevance too."""
        return super().stateful() | {"ledger": self.ledger}

    def select(self, nodes: Sequence[ClientNode], server_round: int) -> list[ClientNode]:
        """Draw clients with probability softmax(relevance)."""
        if server_round == 1:
            self.ledger.initial = 1.0 / len(nodes)
        scores, initial = self.ledger.scores, self.ledger.initial
        relevance = torch.tensor(
            [scores.get(node.node_id, initial) for node in nodes], dtype=torch.float64
        )
        # One absurd value must not leave the others without any chance: too few could be drawn.
        chances = relevance.softmax(dim=0).clamp_min(_LEAST_CHANCE)
        return sample_clients(
            nodes,
            self.fraction_train,
            self.min_train_nodes,
            self.seed,
            server_round,
            probabilities=(chances / chances.sum()).numpy(),
        )

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return FedAvg's weights ``[m]``; the Shapley values only move the relevance."""
        scores = self.valuation.score(updates)
        return Aggregation(
            weights=updates.num_examples / updates.num_examples.sum(),
            scores=scores.values,
            contributions=self.ledger.update(updates.client_ids, scores.values),
            evaluations=scores.evaluations,
        )
