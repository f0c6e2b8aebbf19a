"""Model replacement: a backdoored model, scaled until the mean becomes that model."""

from __future__ import annotations

from dataclasses import dataclass

from fedif_flower.attacks.pixel_trigger import PixelTrigger
from fedif_flower.attacks.scaling import HonestScaling


@dataclass
class ModelReplacement(HonestScaling, PixelTrigger):
    r"""Trains with a pixel trigger and sends its update many times as long.

    .. math:: w_{t-1} + c (w_i - w_{t-1})

    In a round of m clients whose other updates are short, an attacker with :math:`c = m` makes the
    mean of all replies nearly its own model :math:`w_i`.

    Parameters
    ----------
    ratio, target
        As in :class:`~fedif_flower.attacks.pixel_trigger.PixelTrigger`.
    factor : float
        c > 0: the number of clients in a round, which the attacker has to guess.

    References
    ----------
    Bagdasaryan et al., 2020 (How to backdoor federated learning), equation 3 with n / eta = c.
    """
