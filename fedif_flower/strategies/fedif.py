"""FedIF: weights from how far each update goes down the validation loss."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from fedif_flower.settings import Scalar
from fedif_flower.strategies.scored import ScoredStrategy
from fedif_flower.valuation import InfluenceValuation


class FedIF(ScoredStrategy):
    r"""FedIF: aggregate by the influence of each client's update on the validation loss.

    .. math:: \Phi_i = \left\langle \frac{w_{t-1} - w_i}{\lVert w_{t-1} - w_i \rVert},
              \nabla \ell(w_{t-1}, D') \right\rangle

    Paper: *Lightweight and Robust Federated Data Valuation*.

    Parameters
    ----------
    validation : Validation or Valuation
        The server's held-out set D' with model and loss; or how influence is measured on it, such
        as ``InfluenceValuation(validation, weight_normalization=False)``.
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

    made_of = MappingProxyType({**ScoredStrategy.made_of, "validation": InfluenceValuation})
    # What run configs take for it on a data set where nothing is said.
    tuned: ClassVar[Mapping[str, Mapping[str, Scalar]]] = MappingProxyType(
        {"fashion-mnist": MappingProxyType({"gamma": 0.4})}
    )
    can_mask = True
