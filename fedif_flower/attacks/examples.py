"""Which of its examples a malicious client poisons."""

from __future__ import annotations

import torch
from torch import Tensor


def choose(count: int, ratio: float, generator: torch.Generator) -> Tensor:
    """Draw ``round(ratio * count)`` distinct indices out of ``range(count)``, in random order.

    Parameters
    ----------
    count : int
        Examples to choose from, >= 0.
    ratio : float
        Share to choose, in [0, 1].
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    Tensor
        ``[round(ratio * count)]`` int64.
    """
    return torch.randperm(count, generator=generator)[: round(ratio * count)]
