"""S-FedAvg [Nagalapatti and Narayanam, 2021]: clients are drawn by their relevance."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Unpack

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.setup import BaseArguments, seed_of, with_names_of
from fedif_flower.settings import Setting
from fedif_flower.strategies.scored import (
    bounds,
    finite_scores,
    require_few_enough,
    valuation_on,
)
from fedif_flower.valuation import Validation, Valuation
from fedif_flower.valuation.ledger import ScoreLedger
from fedif_flower.valuation.shapley.valuation import SampledOrders

logger = logging.getLogger(__name__)
_LEAST_CHANCE = 1e-12  # The least probability with which a client is drawn, before normalisation.


class SFedAvg(ScreenedStrategy):
    r"""S-FedAvg: draw clients by their relevance, and weigh those drawn as FedAvg does.

    .. math:: \varphi_k \leftarrow \alpha \varphi_k + (1 - \alpha) s_k, \qquad
              P(k) = e^{\varphi_k} / \sum_j e^{\varphi_j}

    with :math:`\varphi_k` client k's relevance, :math:`P(k)` the probability with which it is
    drawn, and :math:`s_k` its Shapley value in the round (in units of the utility; if it is not
    drawn, its relevance stays). At the start :math:`\varphi_k = 1 / K`, with K the number of
    clients from which the first round draws.

    Paper: Nagalapatti and Narayanam, *Game of Gradients: Mitigating Irrelevant Clients in
    Federated Learning*, AAAI 2021.

    Parameters
    ----------
    validation : Validation or Valuation
        The server's held-out set D' with model and loss. Shapley values of the accuracy are then
        estimated on it, by 50 permutations. Or a valuation that estimates them otherwise.
    alpha : float
        The share :math:`\alpha` of the old relevance that stays, in [0, 1).
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).
    """

    default_stages = staticmethod(bounds)
    ledger: ScoreLedger
    made_of = MappingProxyType({"validation": SampledOrders})

    def __init__(
        self,
        validation: Validation | Valuation,
        *,
        alpha: Annotated[
            float, Setting("share of the old relevance that stays", ge=0, lt=1)
        ] = 0.75,
        **base: Unpack[BaseArguments],
    ) -> None:
        shapley = valuation_on(self, validation, partial(SampledOrders, seed=seed_of(base)))
        super().__init__(**with_names_of(shapley.validation or shapley, base))
        self.valuation = shapley
        self.validation = shapley.validation
        self.ledger = ScoreLedger(1.0 - alpha)

    def summary(self) -> None:
        """Log every setting; warn if all clients are drawn, so that relevance has no effect."""
        super().summary()
        if self.fraction_train >= 1:
            logger.warning(
                "S-FedAvg draws everybody with fraction_train = %g: relevance changes nothing, and "
                "it is FedAvg at the price of Shapley values",
                self.fraction_train,
            )

    @property
    def draws_by_itself(self) -> bool:
        """Whether a subclass may draw another number of clients; relevance does not change it."""
        return type(self).select is not SFedAvg.select

    def require_members(self, count: int) -> None:
        """Raise ConfigError if the valuation cannot value ``count`` members."""
        require_few_enough(self.valuation, count)

    def select(self, nodes: Sequence[ClientNode], server_round: int) -> list[ClientNode]:
        """Draw clients with the probabilities softmax(relevance)."""
        if server_round == 1:
            self.ledger.initial = 1.0 / len(nodes)
        relevance = self.ledger.scores_of([node.client_id for node in nodes])
        # With one huge relevance all other probabilities would round to 0, and fewer clients could
        # be drawn than a round needs.
        chances = relevance.softmax(dim=0).clamp_min(_LEAST_CHANCE)
        return self.draw(nodes, server_round, (chances / chances.sum()).numpy())

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return FedAvg's weights ``[m]``; the Shapley values change only the relevance."""
        scores = finite_scores(self.valuation, updates)
        return Aggregation(
            weights=updates.num_examples / updates.num_examples.sum(),
            scores=scores.values,
            weight_scores=self.ledger.update(updates.client_ids, scores.values),
            evaluations=scores.evaluations,
        )
