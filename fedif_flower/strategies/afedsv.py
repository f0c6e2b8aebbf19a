"""AFedSV (ShapleyFL) [Sun et al., 2023]: weights from smoothed Shapley values.

It differs from FedIF in its valuation (and in where weight scores start), nothing else.
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

LEAST_DRAWN = 2  # The authors draw all anew while fewer than two are drawn.


class AFedSV(ScoredStrategy):
    r"""AFedSV (ShapleyFL): aggregate by smoothed Shapley values.

    .. math:: \Omega_k \leftarrow (1 - \gamma) \Omega_k + \gamma\, \mathrm{minmax}(\phi)_k,
              \qquad \Omega_k = 0.5 \text{ at the start}

    with :math:`\phi` the Shapley values of the round's game (see
    :class:`~fedif_flower.valuation.shapley.valuation.ShapleyValuation`).

    Paper: Sun et al., *ShapleyFL: Robust Federated Learning Based on Shapley Value*, KDD 2023.

    Parameters
    ----------
    validation : Validation or Valuation
        The server's held-out set D' with model and loss; or how Shapley values are estimated on it,
        such as ``ShapleyValuation(validation, estimator="gtg", num_samples=20)``. Default:
        complementary contributions, 50 samples per stratum, of the accuracy.
    gamma : float
        Rate of the smooth update, in (0, 1].
    weighting : Weighting, optional
        How scores become weights; a client never seen begins at 0.5.
    sampling : str
        ``"fixed-size"``: a round has C K clients, C = ``fraction_train``. ``"independent"``, as its
        authors draw: each client comes with chance C, whoever else comes; all are drawn anew while
        fewer than two do, or fewer than rounds need. The authors' step is
        :math:`w_t = w_{t-1} + \sum_{i \in S_t} \frac{\Omega_i}{C \sum_{j=1}^K \Omega_j}
        (w_i - w_{t-1})`: ``sampling="independent"`` with ``Weighting(weight_scope="population")``.
        It is meant for many clients: since at least two come, the weights of a round sum to 6.79 in
        the mean where K = 3 and C = 0.1.
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
        """The chance with which each client takes part in a round; ``None``: m of K do."""
        return self.fraction_train if self.sampling == "independent" else None

    @property
    def draws_by_itself(self) -> bool:
        """Whether chance decides how many are drawn; or a subclass does."""
        return self.sampling == "independent" or type(self).select is not AFedSV.select

    def select(self, nodes: Sequence[ClientNode], server_round: int) -> list[ClientNode]:
        """Draw the round's clients, each by itself where ``sampling`` says so."""
        if self.sampling == "fixed-size":
            return super().select(nodes, server_round)
        least = max(LEAST_DRAWN, self.min_train_nodes, self.setup.min_valid_replies)
        generator = numpy_generator("sample-clients", self.seed, server_round)
        return sample_independently(nodes, self.fraction_train, least, generator)
