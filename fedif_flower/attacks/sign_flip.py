"""Sign flip: a client sends its update with the opposite sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour, ClientRound
from fedif_flower.attacks.scaling import scaled
from fedif_flower.settings import Setting


@dataclass
class SignFlip(Behaviour):
    r"""Sends its update with the opposite sign.

    .. math:: u \leftarrow -c\,u

    Parameters
    ----------
    factor : float
        c > 0; 1 keeps the length.

    References
    ----------
    Li et al., 2019 (RSA: Byzantine-robust stochastic aggregation), section 5.
    """

    factor: Annotated[
        float, Setting("c: factor of the reversed update; 1 keeps its length", gt=0)
    ] = 1.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters minus ``factor`` times the update."""
        return scaled(own, -self.factor)
