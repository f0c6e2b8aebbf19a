"""Nearest-neighbour mixing (NNM) of a round's updates, before a rule weighs them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import pairwise_squared_distances
from fedif_flower.aggregators.small_rounds import SmallRounds
from fedif_flower.combining import largest_counters
from fedif_flower.round import RoundUpdates
from fedif_flower.settings import MaliciousFraction
from fedif_flower.stages.stage import Stage


@dataclass(eq=False)
class NearestNeighbours(Stage):
    """Replaces each update by the mean of those nearest to it, itself included.

    Formula: :func:`neighbour_mixing`. Buffers are mixed by the same weights as parameters. Of the
    counters of the clients in a mean, the largest is taken. In records, weights are converted to
    those of the clients' own updates.

    Parameters
    ----------
    malicious_fraction : float
        The share of the round's updates that is left out of each mean, in [0, 1]; at least the
        update itself stays.
    """

    malicious_fraction: MaliciousFraction
    _small_rounds: SmallRounds = field(
        default_factory=SmallRounds, init=False, repr=False, compare=False
    )

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round with mixed updates, whose ``mixing`` ``[m, m]`` says how."""
        m = updates.num_clients
        shortened = updates.shortened().client_updates  # [m, d]
        num_malicious = round(self.malicious_fraction * m)
        self._small_rounds.warn_unless_minority("neighbour mixing", num_malicious, m)
        left_out = min(num_malicious, m - 1)
        mixing = neighbour_mixing(shortened, left_out)
        counters = [largest_counters({}, updates.counters, weights) for weights in mixing]
        return replace(updates.mixed(mixing), counters=counters)


def neighbour_mixing(updates: Tensor, num_malicious: int) -> Tensor:
    r"""Return the matrix M with which ``M @ updates`` are the mixed updates.

    .. math:: y_i = \frac{1}{m - f} \sum_{j \in \mathcal{N}_i} x_j

    with :math:`x_j` the updates, and :math:`\mathcal{N}_i` the indices of the m - f updates nearest
    to :math:`x_i`, itself included. A rule that is applied to the :math:`y_i` withstands attackers
    whose updates differ no more from honest ones than these differ among each other.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, m >= 1, finite.
    num_malicious : int
        f in [0, m - 1].

    Returns
    -------
    Tensor
        ``[m, m]``, float64; rows sum to 1.

    References
    ----------
    Allouah et al., 2023 (Fixing by mixing), algorithm 2.
    """
    distances = pairwise_squared_distances(updates)  # [m, m]
    distances.fill_diagonal_(-1.0)  # Each is nearest to itself, even if others are equal to it.
    num_neighbours = len(distances) - num_malicious
    nearest = distances.argsort(dim=1, stable=True)[:, :num_neighbours]  # [m, m - f]
    return torch.zeros_like(distances).scatter_(1, nearest, 1.0 / num_neighbours)
