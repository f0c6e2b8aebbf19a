"""AFedSV (ShapleyFL) [Sun et al., 2023]: weights from smoothed Shapley values.

It differs from FedIF in its valuation and in the initial weight scores; and it can draw each client
independently of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Literal, Unpack

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.seeding import numpy_generator
from fedif_flower.server.nodes import sample_independently
from fedif_flower.server.setup import BaseArguments, seed_of
from fedif_flower.settings import Setting
from fedif_flower.strategies.scored import FullWeighting, ScoredStrategy, Weighting, valuation_on
from fedif_flower.valuation import Validation, Valuation
from fedif_flower.valuation.ledger import Gamma
from fedif_flower.valuation.shapley.valuation import ShapleyValuation

Sampling = Literal["fixed-size", "independent"]

LEAST_DRAWN = 2  # As the authors' code: it draws a round anew while it has fewer than two clients.


class AFedSV(ScoredStrategy):
    r"""AFedSV (ShapleyFL): weigh by smoothed Shapley values.

    .. math:: \Omega_k \leftarrow (1 - \gamma) \Omega_k + \gamma\, \mathrm{minmax}(\phi)_k,
              \qquad \Omega_k = 0.5 \text{ at the start}

    with :math:`\Omega_k` client k's weight score, :math:`\phi` the Shapley values of the round's
    game (see :class:`~fedif_flower.valuation.shapley.valuation.ShapleyValuation`) and minmax their
    mapping to [0, 1] within the round. Weights are proportional to the weight scores.

    Paper: Sun et al., *ShapleyFL: Robust Federated Learning Based on Shapley Value*, KDD 2023.

    Parameters
    ----------
    validation : Validation or Valuation
        The server's held-out set D' with model and loss. Shapley values of the accuracy are then
        estimated on it, by complementary contributions with 50 samples per stratum. Or a valuation
        that estimates them otherwise, such as
        ``ShapleyValuation(validation, estimator="gtg", num_samples=20)``.
    gamma : float
        Rate of the smooth update, in (0, 1].
    weighting : Weighting, optional
        How scores become weights. By default the weight score of a client never seen is 0.5.
    sampling : str
        How a round's clients are drawn from the K clients, with C = ``fraction_train``.
        ``"fixed-size"``: a round has C K clients. ``"independent"``, as the authors draw: each
        client takes part with probability C, independently of the others; a round with fewer than
        two clients, or fewer than it needs, is drawn anew. The authors' step is
        :math:`w_t = w_{t-1} + \sum_{i \in S_t} \frac{\Omega_i}{C \sum_{j=1}^K \Omega_j}
        (w_i - w_{t-1})`, with :math:`w_i` the model of client i and :math:`S_t` the clients of
        round t. You get it by ``sampling="independent"`` and
        ``Weighting(weight_scope="population")``. It is meant for many clients. With few, the rule
        of at least two clients makes the steps too long: for K = 3 and C = 0.1 the weights of a
        round sum to 6.79 on average.
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).
    """

    made_of = MappingProxyType(
        {"weighting": partial(FullWeighting, initial=0.5), "validation": ShapleyValuation}
    )
    default_weighting = FullWeighting(initial=0.5)

    def __init__(
        self,
        validation: Validation | Valuation,
        *,
        gamma: Gamma = 0.3,
        weighting: Weighting | None = None,
        sampling: Annotated[
            Sampling,
            Setting(
                "a round has C K clients, C = `fraction-train`; or, as its authors draw, each "
                "client comes with chance C, by which `population` divides its weight"
            ),
        ] = "fixed-size",
        **base: Unpack[BaseArguments],
    ) -> None:
        shapley = valuation_on(self, validation, partial(ShapleyValuation, seed=seed_of(base)))
        super().__init__(shapley, gamma=gamma, weighting=weighting, **base)
        self.sampling = sampling
        if sampling == "independent":
            self.setup.pace.require_all_drawn()

    @property
    def chance(self) -> float | None:
        """The probability with which each client is drawn; ``None`` if m of K clients are drawn."""
        return self.fraction_train if self.sampling == "independent" else None

    @property
    def draws_by_itself(self) -> bool:
        """Whether the number of clients drawn is random, or is decided by a subclass."""
        return self.sampling == "independent" or type(self).select is not AFedSV.select

    def select(self, nodes: Sequence[ClientNode], server_round: int) -> list[ClientNode]:
        """Draw the round's clients, independently of each other if ``sampling`` says so."""
        if self.sampling == "fixed-size":
            return super().select(nodes, server_round)
        least = max(LEAST_DRAWN, self.min_train_nodes, self.setup.min_valid_replies)
        generator = numpy_generator("sample-clients", self.seed, server_round)
        return sample_independently(nodes, self.fraction_train, least, generator)
