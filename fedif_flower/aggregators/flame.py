"""FLAME: the largest cluster of directions, bounded lengths, a little noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import bounded_mean
from fedif_flower.aggregators.linear_algebra import gram_matrix, product_error
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.sections import CheckedFields
from fedif_flower.settings import Setting


@dataclass(frozen=True)
class Flame(CheckedFields):
    r"""Average the largest cluster of models with bounded updates, and add noise.

    Formula: :func:`flame_coefficients`. The noise is :math:`N(0, (\lambda S)^2)` for each
    parameter, S being the median length.

    Parameters
    ----------
    noise : float
        :math:`\lambda` >= 0; the paper: 0.001 for images.
    """

    gives_weights = True

    noise: Annotated[float, Setting("lambda: of the noise, in median lengths", ge=0)] = 0.001

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return the coefficients ``[m]`` of the cluster's updates, 0 for the others; noise."""
        found = flame_coefficients(updates.client_params(), updates.squared_norms)
        params = updates.global_params
        draws = torch.randn(params.shape, generator=updates.generator("flame"), dtype=params.dtype)
        return Aggregation(weights=found.coefficients, noise=self.noise * found.bound * draws)


class FlameCoefficients(NamedTuple):
    """Coefficients ``[m]``, float64, and the bound S of the lengths."""

    coefficients: Tensor
    bound: float


def flame_coefficients(client_params: Tensor, squared_norms: Tensor) -> FlameCoefficients:
    r"""Return what to multiply each update by, and the bound that noise is measured by.

    .. math:: a_i = \frac{1}{|B|} \min\left(1, \frac{S}{\lVert u_i \rVert}\right)
              \text{ for } i \in B, \text{ otherwise } 0; \qquad S = \operatorname{median}_i
              \lVert u_i \rVert

    B is the cluster that HDBSCAN finds by the cosine distances between the clients' models, with
    more than half of them at least. Where it finds none, B are all.

    Parameters
    ----------
    client_params : Tensor
        ``[m, d]``: the models :math:`w_i`, m >= 1, finite.
    squared_norms : Tensor
        ``[m]``: of the updates :math:`u_i = w_i - w_{t-1}`.

    References
    ----------
    Nguyen et al., 2022 (FLAME: taming backdoors in federated learning), algorithm 1.
    """
    norms = squared_norms.double().cpu().sqrt()  # [m]
    bound = norms.median()
    admitted = largest_cluster(cosine_distances(client_params))
    return FlameCoefficients(bounded_mean(norms, admitted, bound), float(bound))


def cosine_distances(points: Tensor) -> Tensor:
    """Return 1 - cos between the rows of ``[m, d]``, ``[m, m]``, float64, >= 0, on the CPU."""
    gram = gram_matrix(points).cpu()
    lengths = gram.diagonal().clamp_min(torch.finfo(gram.dtype).tiny).sqrt()
    distances = 1 - gram / lengths / lengths[:, None]
    # A cluster's scale is its own distances: it would be that of rounding where all are equal.
    distances[distances <= product_error(gram.dtype, points.shape[1])] = 0.0
    return distances.fill_diagonal_(0)


def largest_cluster(distances: Tensor) -> Tensor:
    """Return which of m points are in a cluster of more than half of them, ``[m]`` bool."""
    # Imported here: it takes a second, of every client and command line.
    from sklearn.cluster import HDBSCAN

    m = len(distances)
    everyone = torch.ones(m, dtype=torch.bool)
    if m < 3:  # Two points are one cluster or none.
        return everyone
    clusters = HDBSCAN(
        min_cluster_size=m // 2 + 1,
        min_samples=1,
        metric="precomputed",
        allow_single_cluster=True,
        copy=True,
    )
    found = torch.from_numpy(clusters.fit(distances.numpy()).labels_ >= 0)
    return found if bool(found.any()) else everyone
