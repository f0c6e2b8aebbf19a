"""RFA: the geometric median of the clients' models, by smoothed Weiszfeld iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedif_flower.aggregators.linear_algebra import gram_matrix, shares
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.sections import CheckedFields
from fedif_flower.settings import Setting


@dataclass(frozen=True)
class RFA(CheckedFields):
    """Take the geometric median of the clients' models, beginning at FedAvg's mean.

    Formula: :func:`geometric_median_weights`.

    Parameters
    ----------
    iterations : int
        Steps of the smoothed Weiszfeld algorithm, >= 0; 0: FedAvg.
    nu : float
        Smoothing of distances, > 0.
    """

    gives_weights = True

    iterations: Annotated[
        int, Setting("steps of the smoothed Weiszfeld algorithm; 0: FedAvg", ge=0)
    ] = 3
    nu: Annotated[float, Setting("smoothing of distances", gt=0)] = 1e-6

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return weights ``[m]`` whose mean is the median."""
        shares = updates.num_examples / updates.num_examples.sum()
        weights = geometric_median_weights(
            updates.client_updates, shares, iterations=self.iterations, nu=self.nu
        )
        return Aggregation(weights=weights.cpu())


def geometric_median_weights(
    client_params: Tensor, weights: Tensor, *, iterations: int = 3, nu: float = 1e-6
) -> Tensor:
    r"""Return the weights with which the clients' models add up to their geometric median.

    From the weighted mean :math:`z = \sum_i \alpha_i w_i` on, repeat

    .. math:: \beta_i = \frac{\alpha_i}{\max(\nu, \lVert z - w_i \rVert)}, \qquad
              z \leftarrow \frac{\sum_i \beta_i w_i}{\sum_i \beta_i}

    with :math:`\alpha` the given weights divided by their sum and :math:`w_i` the models. As z
    stays a weighted mean :math:`\sum_j p_j w_j`, its distances follow from the inner products
    :math:`G_{ij} = \langle w_i, w_j \rangle`, which need one pass over the models:

    .. math:: \lVert z - w_i \rVert^2 = p^\top G p - 2 (G p)_i + G_{ii}

    Parameters
    ----------
    client_params : Tensor
        ``[m, d]``: models, or updates, finite; the origin does not matter beyond rounding.
    weights : Tensor
        ``[m]``: :math:`\alpha`, >= 0, e.g. numbers of examples.
    iterations : int
        >= 0; 0 gives the weighted mean.
    nu : float
        :math:`\nu`, > 0: distances below it count as it.

    Returns
    -------
    Tensor
        ``[m]``, float64, >= 0, sums to 1.

    Raises
    ------
    ValuationError
        If a model has NaN or Inf.

    References
    ----------
    Pillutla et al., "Robust Aggregation for Federated Learning", IEEE TSP 2022, algorithm 2.
    """
    gram = gram_matrix(client_params)  # [m, m]
    alpha = shares(weights).to(gram.device)
    mean_weights = alpha  # [m]
    for _ in range(iterations):
        to_mean = gram @ mean_weights  # [m]
        squared = mean_weights @ to_mean - 2.0 * to_mean + gram.diagonal()
        beta = alpha / squared.clamp_min(0.0).sqrt().clamp_min(nu)
        mean_weights = beta / beta.sum()
    return mean_weights
