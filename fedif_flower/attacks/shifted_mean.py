"""What several colluders do: all send the mean of their updates, shifted by their spread."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder


class ShiftedMean(Colluder):
    r"""All send :math:`\mu - \gamma \sigma`."""

    @abstractmethod
    def shift(self, updates: Tensor, mean: Tensor, std: Tensor) -> Tensor | float:
        r"""Return :math:`\gamma` for updates ``[k, d]`` of this mean and deviation ``[d]``."""

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the shifted mean ``[k, d]``, the same for all."""
        mean, std = updates.mean(dim=0), updates.std(dim=0, correction=0)  # [d], [d]
        return (mean - self.shift(updates, mean, std) * std).expand_as(updates)
