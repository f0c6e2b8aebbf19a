"""FLAME: average the cluster of most models at bounded lengths, and add a little noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import bounded_mean, length_factors
from fedif_flower.aggregators.linear_algebra import cosines, gram_matrix, product_error
from fedif_flower.constructors import CheckedFields
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.settings import Setting


@dataclass(frozen=True)
class Flame(CheckedFields):
    r"""Average the updates of the cluster of most models at bounded length, and add noise.

    .. math:: a_i = \frac{1}{|B|} \min\left(1, \frac{S}{\lVert u_i \rVert}\right)
              \text{ for } i \in B, \text{ otherwise } 0; \qquad S = \operatorname{median}_i
              \lVert u_i \rVert

    with :math:`u_i` client i's update. B is the cluster that HDBSCAN finds by the cosine distances
    between the clients' models; it has more than half of them. If there is none, B is all of them.
    The noise is :math:`N(0, (\lambda S)^2)` for each parameter. Of an even number of lengths, S is
    the lower one of the middle two. Where stages shorten updates as well, the factor is that of
    :func:`~fedif_flower.aggregators.clipping.length_factors`.

    Parameters
    ----------
    noise : float
        :math:`\lambda` >= 0: the noise's standard deviation, in median lengths. The paper has
        0.001 for images.

    References
    ----------
    Nguyen et al., 2022 (FLAME: taming backdoors in federated learning), algorithm 1.
    """

    gives_weights = True
    sets_lengths = True

    noise: Annotated[float, Setting("lambda: of the noise, in median lengths", ge=0)] = 0.001

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return the coefficients ``[m]``, 0 outside of the cluster, and the noise ``[d]``."""
        norms = updates.squared_norms.double().cpu().sqrt()  # [m]
        bound = norms.median()
        m = len(norms)
        labels = density_clusters(cosine_distances(updates.client_params()), m // 2 + 1)
        selected = labels >= 0  # [m]
        if not bool(selected.any()):
            selected = torch.ones(m, dtype=torch.bool)
        params = updates.global_params
        draws = torch.randn(params.shape, generator=updates.generator("flame"), dtype=params.dtype)
        noise = self.noise * float(bound) * draws
        factors = length_factors(norms, bound, updates.shortening)
        weights = bounded_mean(selected, factors)
        return Aggregation(weights=weights, noise=noise, rescaling=factors)


def cosine_distances(points: Tensor) -> Tensor:
    """Return 1 - cos between the rows of ``[m, d]`` as ``[m, m]``: float64, >= 0, on the CPU."""
    distances = 1 - cosines(gram_matrix(points).cpu())
    # HDBSCAN takes its scale from the distances. If all rows have the same direction, these are
    # rounding errors, which would pass for clusters.
    distances[distances <= product_error(distances.dtype, points.shape[1])] = 0.0
    return distances.fill_diagonal_(0)


def density_clusters(points: Tensor, least: int, metric: str = "precomputed") -> Tensor:
    """Return HDBSCAN's labels ``[m]`` for clusters of at least ``least`` points; -1: outlier.

    Parameters
    ----------
    points : Tensor
        ``[m, k]``, or with the metric "precomputed" the distances ``[m, m]``. Fewer than three
        points are all outliers.
    least : int
        >= 2.
    metric : str
        scikit-learn's name for the distance.
    """
    # Imported here: the import takes a second, which clients and other commands do not need.
    from sklearn.cluster import HDBSCAN

    if len(points) < 3:
        return torch.full((len(points),), -1)
    clusters = HDBSCAN(
        min_cluster_size=least, min_samples=1, metric=metric, allow_single_cluster=True, copy=True
    )
    return torch.from_numpy(clusters.fit(points.double().cpu().numpy()).labels_)


def labels_by_values(points: Tensor, cluster: Callable[[Tensor], Tensor]) -> Tensor:
    """Return cluster labels ``[m]`` of the rows of ``[m, k]``, whatever order the rows are in.

    A clustering breaks ties by the order of the rows, so they are sorted by their values first.
    ``cluster`` takes the rows' indices ``[m]`` in sorted order, and returns a label for each.
    """
    places = torch.from_numpy(np.lexsort(points.cpu().numpy().T))  # [m]
    labels = torch.empty(len(places), dtype=torch.long)
    labels[places] = cluster(places)
    return labels
