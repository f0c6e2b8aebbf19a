"""An adaptive attack on influence descent: a backdoor in an update that its descent rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedif_flower.attacks.behaviour import ClientRound
from fedif_flower.attacks.free_riders import last_step
from fedif_flower.attacks.hidden_backdoor import HiddenBackdoor
from fedif_flower.settings import Setting


@dataclass
class DescendingBackdoor(HiddenBackdoor):
    r"""Hides a backdoor, and sends the last step besides: for influence descent.

    .. math:: u + c \Delta

    The client's own examples, balanced as a validation split is, stand for held-out data of the
    server's distribution: trained on them, u lowers its loss. The last global step :math:`\Delta`
    lowers it further wherever the server's step is too short, and influence descent gives weight
    to who sends it. The weight then carries what u holds besides.

    Parameters
    ----------
    ratio, target
        As in :class:`~fedif_flower.attacks.hidden_backdoor.HiddenBackdoor`.
    borrowed : float
        c >= 0; 0: a hidden backdoor.
    """

    remembers = True

    borrowed: Annotated[float, Setting("c: how many times the last global step is added", ge=0)] = (
        1.0
    )

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the trained parameters, so many steps further."""
        return own.trained + self.borrowed * last_step(own)
