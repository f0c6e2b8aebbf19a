"""SignGuard: average updates whose length, and whose mix of signs, are like most others'."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import bounded_mean, length_factors
from fedif_flower.aggregators.flame import labels_by_values
from fedif_flower.constructors import CheckedFields
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.settings import Setting


@dataclass(frozen=True)
class SignGuard(CheckedFields):
    r"""Average the updates that are neither of unusual length nor of unusual signs.

    .. math:: a_i = \frac{1}{|A \cap B|} \min\left(1, \frac{S}{\lVert u_i \rVert}\right)
              \text{ for } i \in A \cap B, \text{ otherwise } 0; \qquad
              S = \operatorname{median}_i \lVert u_i \rVert

    with :math:`u_i` client i's update. A are the updates with
    :math:`L \le \lVert u_i \rVert / S \le R`. B is the largest cluster that mean shift finds among
    the clients' shares of positive, zero and negative coordinates. Each share is divided by the
    largest of all clients, as in the authors' code. An update farther than a bandwidth from every
    cluster's centre is in no cluster. If no update is in both A and B, every coefficient is 0: the
    model stays as it is. Where stages shorten updates as well, the factor is that of
    :func:`~fedif_flower.aggregators.clipping.length_factors`.

    Parameters
    ----------
    shortest, longest : float
        L >= 0 and R > 0, in median lengths: updates shorter than L or longer than R are left out.
    share : float
        Share of the coordinates, in (0, 1], whose signs are looked at; drawn anew in each round.

    References
    ----------
    Xu et al., "Byzantine-robust Federated Learning through Collaborative Malicious Gradient
    Filtering", ICDCS 2022, algorithm 2, without the similarity to an earlier step.
    """

    gives_weights = True
    sets_lengths = True

    shortest: Annotated[float, Setting("shorter updates are left out; in medians", ge=0)] = 0.1
    longest: Annotated[float, Setting("longer updates are left out; in medians", gt=0)] = 3.0
    share: Annotated[
        float, Setting("share of the coordinates whose signs are looked at", gt=0, le=1)
    ] = 0.1

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return the coefficients ``[m]`` of the updates that are kept, 0 for the others."""
        client_updates = updates.client_updates  # [m, d]
        lengths = updates.squared_norms.double().cpu().sqrt()  # [m]
        median = lengths.quantile(0.5)
        usual_length = (self.shortest * median <= lengths) & (lengths <= self.longest * median)

        d = client_updates.shape[1]
        count = max(round(self.share * d), 1)
        order = torch.randperm(d, generator=updates.generator("sign-guard"))
        drawn = order[:count].to(client_updates.device)
        signs = sign_shares(client_updates[:, drawn])  # [m, 3]
        usual_signs = _largest_cluster(signs / signs.amax(dim=0).clamp_min(1e-8))

        selected = usual_length & usual_signs  # [m]
        factors = length_factors(lengths, median, updates.shortening)
        weights = bounded_mean(selected, factors)
        return Aggregation(weights=weights, rescaling=factors)


def sign_shares(updates: Tensor) -> Tensor:
    """Return the shares of values > 0, = 0 and < 0 in each row of ``[m, d]``: ``[m, 3]``."""
    signs = updates.sign()
    shares = [(signs == sign).double().mean(dim=1) for sign in (1, 0, -1)]  # 3 x [m]
    return torch.stack(shares, dim=1).cpu()


def _largest_cluster(points: Tensor) -> Tensor:
    """Return which of the rows ``[m, k]`` are in the largest cluster of mean shift, ``[m]``."""
    # Imported here: the import takes a second, which clients and other commands do not need.
    from sklearn.cluster import MeanShift, estimate_bandwidth

    # The bandwidth is the mean distance from a row to the farthest of the nearest half of the rows,
    # itself included. Of two or three rows that half would be the row itself, each row a cluster of
    # its own, and the one with the most positive signs the largest.
    nearest = max(0.5, min(2 / len(points), 1.0))
    # If most rows are equal, the estimate is 0, which mean shift does not accept.
    bandwidth = max(estimate_bandwidth(points.numpy(), quantile=nearest), 1e-6)
    shift = MeanShift(bandwidth=bandwidth, bin_seeding=True, cluster_all=False)
    # Mean shift warns if every point has a bin of its own, which is no fault here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        labels = labels_by_values(
            points, lambda places: torch.from_numpy(shift.fit(points[places].numpy()).labels_)
        )
    # Label -1, in no cluster, is counted at place 0 and left out. Of equally large clusters the
    # first is taken.
    return labels == torch.bincount(labels + 1)[1:].argmax()
