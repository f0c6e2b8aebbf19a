"""A little is enough: a shift of every coordinate that stays within the clients' spread."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

from torch import Tensor

from fedif_flower.attacks.behaviour import ShiftedMean
from fedif_flower.errors import require
from fedif_flower.settings import Setting

# Clients of a federation so large that only the share of malicious ones counts, below a half.
_MANY_CLIENTS = 10_000


def largest_shift(num_clients: int, num_malicious: int) -> float:
    r"""Return the largest z at which enough honest clients lie further out than the attackers.

    .. math::
        z = \max\!\left(0, \Phi^{-1}\!\left(\frac{n - m - s}{n - m}\right)\right), \quad
        s = \lfloor n / 2 + 1 \rfloor - m

    with :math:`\Phi` the cumulative distribution function of the standard normal. Together with s
    honest clients the attackers are a majority. If they are a majority by themselves (s < 1), s is
    taken to be 1. With a single honest client z is 0.

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
    without_supporters = (honest - supporters) / honest
    if without_supporters <= 0:
        return 0.0
    return max(NormalDist().inv_cdf(without_supporters), 0.0)


@dataclass
class Alie(ShiftedMean):
    r"""A little is enough: all send their mean update, shifted within the clients' own spread.

    .. math:: \mu - z \sigma

    An accomplice that is alone in its round sends its honest update, since its :math:`\sigma` is 0.

    Parameters
    ----------
    malicious_fraction : float
        The share of malicious clients, in [0, 1). z follows from it as in a federation of 10,000
        clients (:func:`largest_shift`). Below a half that is the limit of large federations,
        :math:`\Phi(z) = 0.5 / (1 - \text{share})`. From a half on there is no limit: z is 3.5 at a
        half, and depends on the 10,000.
    z : float, optional
        How many standard deviations the mean is shifted by, > 0; ``None``: as many as follow from
        ``malicious_fraction``.

    Raises
    ------
    ConfigError
        If z is not > 0; or if all clients are malicious and z is ``None``: there are no honest
        clients to hide among.

    References
    ----------
    Baruch et al., 2019 (A little is enough), algorithm 3.
    """

    malicious_fraction: float
    z: Annotated[
        float | None,
        Setting(
            "distance from the mean, in standard deviations", gt=0, auto="as its paper computes it"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise ConfigError if z is not > 0, or does not follow from ``malicious_fraction``."""
        super().__post_init__()
        if self.z is None:
            fraction = self.malicious_fraction
            allowed = "< 1 with alie.z = 'auto', which follows from the number of honest clients"
            require(fraction < 1, "malicious-fraction", fraction, allowed)

    def shift(self, updates: Tensor, mean: Tensor, std: Tensor) -> float:
        """Return z."""
        if self.z is not None:
            return self.z
        # At most all but one: largest_shift divides by the number of honest clients.
        malicious = min(round(self.malicious_fraction * _MANY_CLIENTS), _MANY_CLIENTS - 1)
        return largest_shift(_MANY_CLIENTS, malicious)
