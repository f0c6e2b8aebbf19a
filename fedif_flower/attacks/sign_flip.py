"""Sign flip: a client goes the other way."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour, ClientRound
from fedif_flower.settings import Setting


class SignFlip(Behaviour):
    r"""Sends the update turned around: :math:`u \leftarrow -c\,u`.

    Parameters
    ----------
    factor : float
        c > 0; 1 keeps the length.

    References
    ----------
    Li et al., 2019 (RSA: Byzantine-robust stochastic aggregation), section 5.
    """

    def __init__(
        self, factor: Annotated[float, Setting("c: 1 keeps the length", gt=0)] = 1.0
    ) -> None:
        self.factor = factor

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return :math:`w_{t-1} - c (w_i - w_{t-1})`."""
        return own.received - self.factor * (own.trained - own.received)
