"""SignGuard: updates of a usual length whose signs are distributed as most."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import bounded_mean
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.sections import CheckedFields
from fedif_flower.settings import Setting


@dataclass(frozen=True)
class SignGuard(CheckedFields):
    """Average the updates that are neither of unusual length nor of unusual signs.

    Formula: :func:`sign_guard_coefficients`.

    Parameters
    ----------
    shortest, longest : float
        In median lengths, >= 0 and > 0: shorter and longer updates are left out.
    share : float
        Of the coordinates, in (0, 1], whose signs are looked at, drawn for each round.
    """

    gives_weights = True

    shortest: Annotated[float, Setting("shorter updates are left out; in medians", ge=0)] = 0.1
    longest: Annotated[float, Setting("longer updates are left out; in medians", gt=0)] = 3.0
    share: Annotated[
        float, Setting("of the coordinates, whose signs are looked at", gt=0, le=1)
    ] = 0.1

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return the coefficients ``[m]`` of the updates that are kept, 0 for the others."""
        d = updates.client_updates.shape[1]
        drawn = torch.randperm(d, generator=updates.generator("sign-guard"))
        coordinates = drawn[: max(round(self.share * d), 1)].to(updates.client_updates.device)
        coefficients = sign_guard_coefficients(
            updates.squared_norms.double().cpu().sqrt(),
            sign_shares(updates.client_updates[:, coordinates]),
            shortest=self.shortest,
            longest=self.longest,
        )
        return Aggregation(weights=coefficients)


def sign_shares(updates: Tensor) -> Tensor:
    """Return the shares of values > 0, = 0 and < 0 in each row of ``[m, d]``: ``[m, 3]``."""
    signs = updates.sign()
    return torch.stack([(signs == sign).double().mean(dim=1) for sign in (1, 0, -1)], dim=1).cpu()


def sign_guard_coefficients(
    lengths: Tensor, shares: Tensor, *, shortest: float = 0.1, longest: float = 3.0
) -> Tensor:
    r"""Return what to multiply each update by.

    .. math:: a_i = \frac{1}{|A \cap B|} \min\left(1, \frac{S}{\lVert u_i \rVert}\right)
              \text{ for } i \in A \cap B, \text{ otherwise } 0; \qquad
              S = \operatorname{median}_i \lVert u_i \rVert

    A are those with :math:`L \le \lVert u_i \rVert / S \le R`; B is the largest cluster that mean
    shift finds among the shares of positive, zero and negative coordinates, each divided by the
    largest of all clients, as in the authors' code. Who is within a bandwidth of no cluster's
    centre is in none. Where nobody is in both, all are 0: the model stays.

    Parameters
    ----------
    lengths : Tensor
        ``[m]``, m >= 1: of the updates.
    shares : Tensor
        ``[m, 3]``, as :func:`sign_shares` returns them.
    shortest, longest : float
        L and R.

    Returns
    -------
    Tensor
        ``[m]``, float64.

    References
    ----------
    Xu et al., "Byzantine-robust Federated Learning through Collaborative Malicious Gradient
    Filtering", ICDCS 2022, algorithm 2, without the similarity to an earlier step.
    """
    median = lengths.quantile(0.5)
    usual = (shortest * median <= lengths) & (lengths <= longest * median)  # [m]
    kept = usual & _largest_cluster(shares / shares.amax(dim=0).clamp_min(1e-8))
    return bounded_mean(lengths, kept, median)


def _largest_cluster(points: Tensor) -> Tensor:
    """Return which of the rows ``[m, k]`` are in the largest cluster of mean shift, ``[m]``."""
    # Imported here: it takes a second, of every client and command line.
    from sklearn.cluster import MeanShift, estimate_bandwidth

    # Where most are equal, the estimate is 0, which mean shift does not take.
    bandwidth = max(estimate_bandwidth(points.numpy(), quantile=0.5), 1e-6)
    shift = MeanShift(bandwidth=bandwidth, bin_seeding=True, cluster_all=False)
    with warnings.catch_warnings():  # That each point has a bin of its own.
        warnings.simplefilter("ignore")
        labels = torch.from_numpy(shift.fit(points.numpy()).labels_)  # -1: in no cluster.
    return labels == torch.bincount(labels + 1)[1:].argmax()
