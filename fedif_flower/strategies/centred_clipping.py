"""Centred clipping [Karimireddy et al., 2021]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from fedif_flower.aggregators.centred_clipping import centred_clipping
from fedif_flower.errors import require
from fedif_flower.round import RoundUpdates
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.state import Stateful
from fedif_flower.strategies.vector_rule import VectorRule


class CentredClipping(VectorRule):
    """Move by the mean of updates that are clipped around the last round's step.

    Paper: Karimireddy et al., *Learning from History for Byzantine Robust Optimization*, ICML 2021.

    Parameters
    ----------
    radius : float, optional
        How far from the centre an update counts in full, > 0; ``None``: the median distance.
    iterations : int
        >= 1.
    *flower, **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self,
        *flower: Any,
        radius: float | None = None,
        iterations: int = 3,
        **base: Unpack[BaseArguments],
    ) -> None:
        require(radius is None or radius > 0, "radius", radius, "> 0")
        require(iterations >= 1, "iterations", iterations, ">= 1")
        super().__init__(*flower, **base)
        self.radius = radius
        self.iterations = iterations
        self.last_step = _LastStep()

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds: the last step too."""
        return super().stateful() | {"last_step": self.last_step}

    def step(self, updates: RoundUpdates) -> Tensor:
        """Return the clipped mean ``[d]``."""
        centre = self.last_step.of(updates)
        step = centred_clipping(
            updates.client_updates, centre, radius=self.radius, iterations=self.iterations
        )
        self.last_step.value = step.cpu()
        return step


class _LastStep:
    """The step of the last round; zero before the first."""

    def __init__(self) -> None:
        self.value: Tensor | None = None

    def of(self, updates: RoundUpdates) -> Tensor:
        params = updates.global_params
        return torch.zeros_like(params) if self.value is None else self.value.to(params)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.value = state["value"]
