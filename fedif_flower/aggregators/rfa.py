"""RFA: the geometric median of the clients' models, by smoothed Weiszfeld iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedif_flower.aggregators.linear_algebra import gram_matrix, normalize_weights
from fedif_flower.constructors import CheckedFields
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.settings import Setting


@dataclass(frozen=True)
class RFA(CheckedFields):
    r"""Take the geometric median of the clients' models, beginning at FedAvg's mean.

    From the weighted mean :math:`z = \sum_i \alpha_i w_i` on, repeat

    .. math:: \beta_i = \frac{\alpha_i}{\max(\nu, \lVert z - w_i \rVert)}, \qquad
              z \leftarrow \frac{\sum_i \beta_i w_i}{\sum_i \beta_i}

    with :math:`\alpha_i = n_i / \sum_j n_j` client i's share of the examples and :math:`w_i` its
    model. As z stays a weighted mean :math:`\sum_j p_j w_j`, its distances follow from the inner
    products :math:`G_{ij} = \langle w_i, w_j \rangle`. These need one pass over the models, or as
    here over the updates, since the origin matters for rounding alone:

    .. math:: \lVert z - w_i \rVert^2 = p^\top G p - 2 (G p)_i + G_{ii}

    Parameters
    ----------
    iterations : int
        Steps of the smoothed Weiszfeld algorithm, >= 0; 0: FedAvg.
    nu : float
        :math:`\nu` > 0: a distance smaller than this counts as this.

    References
    ----------
    Pillutla et al., "Robust Aggregation for Federated Learning", IEEE TSP 2022, algorithm 2.
    """

    gives_weights = True

    iterations: Annotated[
        int, Setting("steps of the smoothed Weiszfeld algorithm; 0: FedAvg", ge=0)
    ] = 3
    nu: Annotated[float, Setting("smoothing of distances", gt=0)] = 1e-6

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights ``[m]`` of the models in their geometric median."""
        gram = gram_matrix(updates.client_updates)  # [m, m]
        alpha = normalize_weights(updates.num_examples).to(gram.device)
        weights = alpha  # [m]
        for _ in range(self.iterations):
            to_mean = gram @ weights  # [m]
            # [m]: ||z - w_i||^2, which rounding may leave below 0.
            squared = weights @ to_mean - 2.0 * to_mean + gram.diagonal()
            beta = alpha / squared.clamp_min(0.0).sqrt().clamp_min(self.nu)
            weights = beta / beta.sum()
        return Aggregation(weights=weights.cpu())
