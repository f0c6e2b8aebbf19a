"""Scaling: a client makes its update longer, so that it counts for many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour, ClientRound
from fedif_flower.attacks.label_noise import LabelNoise
from fedif_flower.settings import Setting


def scaled(own: ClientRound, factor: float) -> Tensor:
    r"""Return :math:`w_{t-1} + c (w_i - w_{t-1})`, ``[d]``: the model with the update times c.

    :math:`w_{t-1}` are the received parameters, :math:`w_i` the trained ones, c is ``factor``.
    """
    return own.received + factor * (own.trained - own.received)


@dataclass
class HonestScaling(Behaviour):
    r"""Trains honestly and lengthens its update, to gain weight or by a mistake of units.

    .. math:: u \leftarrow c\,u

    Parameters
    ----------
    factor : float
        c > 0.
    """

    factor: Annotated[float, Setting("c: factor by which the update is multiplied", gt=0)] = 10.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the parameters with the update scaled (see :func:`scaled`)."""
        return scaled(own, self.factor)


@dataclass
class Scaling(HonestScaling, LabelNoise):
    r"""Trains on partly wrong labels and lengthens its update.

    .. math:: u \leftarrow c\,u

    Parameters
    ----------
    ratio : float
        Share of the labels that is replaced, in [0, 1].
    factor : float
        c > 0.
    """
