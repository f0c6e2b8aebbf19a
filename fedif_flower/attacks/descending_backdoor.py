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
    r"""Hides a backdoor in its update, and adds the last global step for influence descent.

    .. math:: u + c \Delta

    u is the update of a hidden backdoor. The client trains it on its own examples, balanced as a
    validation split is, so that u lowers the server's held-out loss. The last global step
    :math:`\Delta` lowers this loss further wherever the server's steps are too short, and influence
    descent gives weight to a client that sends it. With this weight the backdoor in u gets into the
    model.

    Parameters
    ----------
    ratio, target
        As in :class:`~fedif_flower.attacks.hidden_backdoor.HiddenBackdoor`.
    borrowed : float
        c >= 0; 0: a hidden backdoor.
    """

    remembers = True

    borrowed: Annotated[float, Setting("c: factor of the last global step that is added", ge=0)] = (
        1.0
    )

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the trained parameters plus ``borrowed`` times the last global step."""
        return own.trained + self.borrowed * last_step(own)
