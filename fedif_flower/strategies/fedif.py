"""FedIF: weights from how far each update descends the validation loss."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Unpack

from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.server.setup import BaseArguments
from fedif_flower.settings import Scalar
from fedif_flower.strategies.scored import (
    FullWeighting,
    ScoredStrategy,
    Weighting,
    finite_scores,
    valuation_on,
)
from fedif_flower.valuation import InfluenceValuation, Validation, Valuation
from fedif_flower.valuation.ledger import Gamma


class FedIF(ScoredStrategy):
    r"""FedIF: weigh by the influence of each client's update on the validation loss.

    .. math::

        \Phi_i &= \left\langle \frac{w_{t-1} - w_i}{\lVert w_{t-1} - w_i \rVert},
            \nabla \ell(w_{t-1}, D') \right\rangle &&\text{round influence} \\
        \Psi_i &= \frac{\Phi_i - \min_j \Phi_j}{\max_j \Phi_j - \min_j \Phi_j}
            &&\text{over the round's clients} \\
        \Omega_i &\leftarrow (1 - \gamma) \Omega_i + \gamma \Psi_i
            &&\text{smooth update} \\
        w_t &= w_{t-1} + \sum_i p_i (w_i - w_{t-1}), \quad p_i = \Omega_i / \sum_j \Omega_j
            &&\text{aggregation}

    with :math:`w_{t-1}` the global model that round t sends, :math:`w_i` the model that client i
    sends back, :math:`\ell(w, D')` the loss of a model on the held-out set D', and
    :math:`\Omega_i = 0` before client i's first round.

    Paper: *Lightweight and Robust Federated Data Valuation*.

    Parameters
    ----------
    validation : Validation or Valuation
        The server's held-out set D' with model and loss. Or a valuation that measures influence on
        it in another way, such as ``InfluenceValuation(validation, weight_normalization=False)``.
    gamma : float
        Rate of the smooth update, in (0, 1]; the paper: 0.3 (CIFAR-10), 0.4 (Fashion-MNIST).
    weighting : Weighting, optional
        How scores become weights (see :class:`~fedif_flower.strategies.scored.Weighting`).
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).

    Examples
    --------
    >>> validation = Validation(model, inputs, targets)          # doctest: +SKIP
    >>> strategy = FedIF(validation, fraction_train=0.1)         # doctest: +SKIP
    >>> strategy.start(grid, ArrayRecord(model.state_dict()))    # doctest: +SKIP
    """

    made_of = MappingProxyType({"weighting": FullWeighting, "validation": InfluenceValuation})
    # By data set, the settings that a run config has if it does not set them.
    tuned: ClassVar[Mapping[str, Mapping[str, Scalar]]] = MappingProxyType(
        {"fashion-mnist": MappingProxyType({"gamma": 0.4})}
    )
    reads_updates = False  # The updates' products with the gradient, and their lengths, are enough.

    def __init__(
        self,
        validation: Validation | Valuation,
        *,
        gamma: Gamma = 0.3,
        weighting: Weighting | None = None,
        **base: Unpack[BaseArguments],
    ) -> None:
        influence = valuation_on(self, validation, InfluenceValuation)
        super().__init__(influence, gamma=gamma, weighting=weighting, **base)

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights p ``[m]`` of a round's clients, and the scores behind them."""
        client_ids = updates.client_ids
        influence = finite_scores(self.valuation, updates)  # round influence Phi [m]
        normalized = self.normalize(influence, updates.server_round)  # min-max: Psi [m]
        weight_scores = self.ledger.update(client_ids, normalized)  # smooth update: Omega [m]
        weights = self.weights_of(client_ids)  # p [m]: Omega over the sum of the round's
        return Aggregation(
            weights=weights,
            scores=influence.values,
            normalized=normalized,
            weight_scores=weight_scores,
            accumulative=self.accumulate(influence, updates),  # INF [m]
            evaluations=influence.evaluations,
        )
