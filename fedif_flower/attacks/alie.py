"""A little is enough: a shift of every coordinate that stays within the clients' spread."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

from torch import Tensor

from fedif_flower.attacks.behaviour import ShiftedMean
from fedif_flower.errors import require
from fedif_flower.settings import Setting

_MANY = 10_000  # Clients of a federation so large that only the share of malicious ones counts.


def largest_shift(num_clients: int, num_malicious: int) -> float:
    r"""Return the largest z at which enough honest clients lie further out than the attackers.

    .. math::
        z = \Phi^{-1}\!\left(\frac{n - m - s}{n - m}\right), \quad
        s = \lfloor n / 2 + 1 \rfloor - m

    with :math:`\Phi` the normal distribution's cumulative function. s honest supporters make a
    majority; where the attackers are one already (s < 1) one supporter is asked for.

    Parameters
    ----------
    num_clients : int
        n > m.
    num_malicious : int
        m >= 0.

    References
    ----------
    Baruch et al., 2019, section 3.2.
    """
    honest = num_clients - num_malicious
    supporters = max(num_clients // 2 + 1 - num_malicious, 1)
    share = (honest - supporters) / honest
    if share <= 0:
        return 0.0
    return NormalDist().inv_cdf(share)


@dataclass
class Alie(ShiftedMean):
    r"""A little is enough: all move the mean within the clients' own spread.

    .. math:: \mu - z \sigma

    One that is alone in its round sends its honest update.

    Parameters
    ----------
    malicious_fraction : float
        Their share of a large federation, in [0, 1), from which z follows (:func:`largest_shift`).
    z : float, optional
        In place of the one that follows.

    Raises
    ------
    ConfigError
        If all are malicious and z is to follow: nobody's spread is left to hide in.

    References
    ----------
    Baruch et al., 2019 (A little is enough), algorithm 3.
    """

    malicious_fraction: float
    z: Annotated[
        float | None, Setting("deviations from the mean", gt=0, auto="as its paper computes it")
    ] = None

    def __post_init__(self) -> None:
        """Refuse a share from which no z follows."""
        if self.z is None:
            share = self.malicious_fraction
            allowed = "< 1 where alie.z is 'auto', which reckons with honest clients"
            require(share < 1, "malicious-fraction", share, allowed)

    def shift(self, updates: Tensor, mean: Tensor, std: Tensor) -> float:
        """Return z."""
        if self.z is not None:
            return self.z
        malicious = min(round(self.malicious_fraction * _MANY), _MANY - 1)
        return largest_shift(_MANY, malicious)
