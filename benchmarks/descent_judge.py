"""The validation set D' of a small federation, and what looking at it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedif_flower.valuation import Validation


@dataclass
class Judge:
    """D' in a few disjoint, stratified parts; ``passes`` counts gradients of the whole of it."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    passes: float = 0.0
    _parts: dict[int, list[Validation]] = field(default_factory=dict)

    def gradient(self, params: Tensor, part: int = 0, parts: int = 1) -> tuple[float, Tensor]:
        """Return loss and gradient on one of so many parts."""
        self.passes += 1 / parts
        return self._of(parts)[part % parts].loss_and_gradient(params)

    def worst(self, params: Tensor, classes: int) -> tuple[float, Tensor]:
        """Return the mean loss of the classes that lose most, and its gradient."""
        self.passes += 1
        if 0 not in self._parts:
            each = [self.labels == c for c in self.labels.unique()]
            self._parts[0] = [
                Validation(self.model, self.inputs[i], self.labels[i], device="cpu") for i in each
            ]
        found = [part.loss_and_gradient(params) for part in self._parts[0]]
        most = sorted(found, key=lambda one: one[0])[-classes:]
        losses, gradients = zip(*most, strict=True)
        return sum(losses) / classes, torch.stack(gradients).mean(dim=0)

    def loss(self, params: Tensor, part: int = 0, parts: int = 1) -> float:
        """Return the loss on a part; a forward pass is a third of a gradient."""
        self.passes += 1 / 3 / parts
        return self._of(parts)[part % parts].loss(params)

    def _of(self, parts: int) -> list[Validation]:
        if parts not in self._parts:
            order = torch.argsort(self.labels, stable=True)  # Every k-th of each class.
            chosen = [order[k::parts] for k in range(parts)]
            self._parts[parts] = [
                Validation(self.model, self.inputs[i], self.labels[i], device="cpu", batch_size=500)
                for i in chosen
            ]
        return self._parts[parts]
