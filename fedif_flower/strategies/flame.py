"""FLAME [Nguyen et al., 2022]: clustering, clipping, noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from fedif_flower.aggregators.flame import flame_coefficients
from fedif_flower.errors import require
from fedif_flower.messages.screening import AcceptedReply
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.seeding import torch_generator
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.screened import ScreenedStrategy


class Flame(ScreenedStrategy):
    r"""Average the largest cluster of models with bounded updates, and add noise.

    The noise is :math:`N(0, (\lambda S)^2)` for each parameter, S being the median length.

    Paper: Nguyen et al., *FLAME: Taming Backdoors in Federated Learning*, USENIX Security 2022.

    Parameters
    ----------
    noise : float
        :math:`\lambda` >= 0; the paper: 0.001 for images.
    *flower, **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(self, *flower: Any, noise: float = 0.001, **base: Unpack[BaseArguments]) -> None:
        require(noise >= 0.0, "noise", noise, ">= 0")
        super().__init__(*flower, **base)
        self.noise = noise
        self._bound = 0.0

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the coefficients ``[m]`` of the cluster's updates, 0 for the others."""
        found = flame_coefficients(updates.client_params(), updates.squared_norms)
        self._bound = found.bound
        return Aggregation(weights=found.coefficients)

    def merge(
        self, updates: RoundUpdates, accepted: Sequence[AcceptedReply]
    ) -> tuple[ModelVectors, Aggregation]:
        """Add noise to the parameters of what the cluster leads to."""
        vectors, aggregation = super().merge(updates, accepted)
        generator = torch_generator("flame", self.seed, updates.server_round)
        draws = torch.randn(vectors.params.shape, generator=generator, dtype=vectors.params.dtype)
        params = vectors.params + self.noise * self._bound * draws
        return replace(vectors, params=params), aggregation
