"""Nearest-neighbour mixing (NNM) of a round, before any rule weighs it."""

from __future__ import annotations

from fedif_flower.aggregators.neighbour_mixing import neighbour_mixing
from fedif_flower.round import RoundUpdates
from fedif_flower.sections import require_settings
from fedif_flower.settings import MaliciousFraction
from fedif_flower.stages.stage import Stage


class NearestNeighbours(Stage):
    """Replaces each update by the mean of those nearest to it, itself included.

    Formula: :func:`~fedif_flower.aggregators.neighbour_mixing.neighbour_mixing`. Buffers are mixed
    as parameters are. Weights in records are those of the clients' own updates.

    Parameters
    ----------
    malicious_fraction : float
        In [0, 1]: this share of the round is left out of each mean, but never all.
    """

    def __init__(self, malicious_fraction: MaliciousFraction) -> None:
        require_settings(NearestNeighbours, {"malicious_fraction": malicious_fraction})
        self.malicious_fraction = malicious_fraction

    def __repr__(self) -> str:
        """Name the stage and its setting."""
        return f"NearestNeighbours({self.malicious_fraction:g})"

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round with mixed updates, and the matrix that mixed them."""
        updates = updates.shortened()
        m = updates.num_clients
        left_out = min(round(self.malicious_fraction * m), m - 1)
        return updates.mixed(neighbour_mixing(updates.client_updates, left_out))
