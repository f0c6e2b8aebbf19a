"""Distributed backdoor: each client trains with a part of the trigger; the whole is used later."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.attacks.pixel_trigger import PixelTrigger, require_room, trigger_side

NUM_PARTS = 4


def stamp_bars(pixels: Tensor, parts: range | tuple[int, ...] = range(NUM_PARTS)) -> Tensor:
    """Return images with white bars in their upper left corner: two side by side, two below them.

    Parameters
    ----------
    pixels : Tensor
        ``[n, c, h, w]``, h >= 3, w >= 5.
    parts : range or tuple of int
        Which of the four bars are stamped; they are numbered by rows. Each is one pixel high and as
        long as :func:`~fedif_flower.attacks.pixel_trigger.trigger_side`, with gaps of one pixel.
    """
    length = trigger_side(pixels)
    require_room(pixels, 3, 2 * length + 1)
    stamped = pixels.clone()
    for part in parts:
        row = 2 * (part // 2)
        column = (length + 1) * (part % 2)
        stamped[..., row, column : column + length] = 1
    return stamped


class DistributedTrigger(PixelTrigger):
    """Stamps one of four bars, drawn once per client; all four together are the trigger (DBA).

    No client trains with the whole trigger, so that a defence finds less of it in any one update.
    The parameters are those of :class:`~fedif_flower.attacks.pixel_trigger.PixelTrigger`.

    References
    ----------
    Xie et al., 2020 (DBA: Distributed Backdoor Attacks against Federated Learning).
    """

    def stamp(self, pixels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return images with one bar, drawn from ``generator``; without it, with all four."""
        if generator is None:
            return stamp_bars(pixels)
        part = int(torch.randint(NUM_PARTS, (), generator=generator))
        return stamp_bars(pixels, (part,))
