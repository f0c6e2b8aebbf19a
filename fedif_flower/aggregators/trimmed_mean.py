"""The coordinate-wise trimmed mean [Yin et al., 2018]."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedif_flower.aggregators.small_rounds import SmallRounds
from fedif_flower.constructors import CheckedFields
from fedif_flower.round import RoundUpdates
from fedif_flower.settings import MaliciousFraction


@dataclass(frozen=True)
class TrimmedMean(CheckedFields):
    """Move each parameter by the mean of the updates without the smallest and the largest.

    Formula: :func:`trimmed_mean`.

    Parameters
    ----------
    malicious_fraction : float
        Assumed share of malicious clients, in [0, 1]. Of m updates, as many values as are assumed
        to be malicious are left out at each end, but at most (m - 1) // 2: where that is fewer,
        the log warns.
    """

    malicious_fraction: MaliciousFraction = 0.2
    _small_rounds: SmallRounds = field(
        default_factory=SmallRounds, init=False, repr=False, compare=False
    )

    def __call__(self, updates: RoundUpdates) -> Tensor:
        """Return the trimmed mean ``[d]``."""
        m = updates.num_clients
        num_malicious = round(self.malicious_fraction * m)
        self._small_rounds.warn_unless_minority("the trimmed mean", num_malicious, m)
        num_trimmed = min(num_malicious, (m - 1) // 2)
        return trimmed_mean(updates.client_updates, num_trimmed)


def trimmed_mean(updates: Tensor, num_trimmed: int) -> Tensor:
    """Return each coordinate's mean without its ``num_trimmed`` smallest and largest values.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, finite.
    num_trimmed : int
        How many values are left out at each end, in [0, (m - 1) / 2].

    Returns
    -------
    Tensor
        ``[d]``, same dtype.

    References
    ----------
    Yin et al., 2018 (Byzantine-robust distributed learning), definition 2.
    """
    m = len(updates)
    if not num_trimmed:
        return updates.mean(dim=0)
    ordered = updates.sort(dim=0).values  # [m, d]
    return ordered[num_trimmed : m - num_trimmed].mean(dim=0)
