"""AFedSV (ShapleyFL) [Sun et al., 2023]: weights from smoothed Shapley values.

It differs from FedIF in its valuation (and in where weight scores start), nothing else.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

from fedif_flower.strategies.scored import ScoredStrategy, Weighting
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
    validation : Validation or Valuation
        The server's held-out set D' with model and loss; or how Shapley values are estimated on it,
        such as ``ShapleyValuation(validation, estimator="gtg", num_samples=20)``. Default:
        complementary contributions, 50 samples per stratum, of the accuracy.
    gamma : float
        Rate of the smooth update, in (0, 1].
    weighting : Weighting, optional
        How scores become weights; a client never seen begins at 0.5.
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.strategies.base.ScreenedStrategy`).
    """

    made_of = MappingProxyType(
        {"weighting": partial(Weighting, initial=0.5), "validation": ShapleyValuation}
    )
    default_weighting = Weighting(initial=0.5)
