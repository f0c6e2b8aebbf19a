"""Neurotoxin: a backdoor in the coordinates that honest updates use least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedif_flower.attacks.behaviour import ClientRound
from fedif_flower.attacks.free_riders import last_step
from fedif_flower.attacks.pixel_trigger import PixelTrigger
from fedif_flower.settings import Setting


@dataclass
class Neurotoxin(PixelTrigger):
    r"""Trains with a pixel trigger and sends the part of its update that others hardly overwrite.

    The update is set to 0 in the share k of the coordinates in which the last global step was
    largest. Honest clients move these coordinates, and would undo the backdoor there. In the paper,
    every gradient of local training is projected in this way; here the finished update is. In its
    first round the client knows no step yet, and sends its whole update.

    Parameters
    ----------
    ratio, target
        As in :class:`~fedif_flower.attacks.pixel_trigger.PixelTrigger`.
    spared : float
        k in [0, 1).

    References
    ----------
    Zhang et al., "Neurotoxin: Durable Backdoors in Federated Learning", ICML 2022, algorithm 1.
    """

    remembers = True

    spared: Annotated[
        float, Setting("k: share of the most used coordinates that are left alone", ge=0, lt=1)
    ] = 0.05

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the trained parameters, with the received ones in the most used coordinates."""
        step = last_step(own).abs()
        poisoned = own.trained.clone()
        if bool(step.any()):
            most_used = step.topk(round(self.spared * len(step))).indices
            poisoned[most_used] = own.received[most_used]
        return poisoned
