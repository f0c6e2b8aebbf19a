"""The base of rules that make a step of a round's updates which is no weighted mean of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.messages.screening import AcceptedReply
from fedif_flower.round import (
    Aggregation,
    ModelVectors,
    RoundUpdates,
    all_finite,
    combine_buffers,
    largest_counters,
)
from fedif_flower.strategies.screened import ScreenedStrategy


class VectorRule(ScreenedStrategy):
    """A rule that says how far the parameters move; a subclass overrides :meth:`step`.

    Buffers are averaged over the accepted replies. No client has a weight of its own: NaN.
    """

    combines_updates = False

    def step(self, updates: RoundUpdates) -> Tensor:
        """Return the step ``[d]`` that a round's updates lead to."""
        raise NotImplementedError(f"{type(self).__name__} does not say where a round leads")

    def merge(
        self,
        updates: RoundUpdates,
        accepted: Sequence[AcceptedReply],  # noqa: ARG002
    ) -> tuple[ModelVectors, Aggregation]:
        """Return the model one step on."""
        factors, buffer_factors = self.bounds.factors(updates)
        if bool((factors < 1).any()):
            updates = replace(
                updates,
                client_updates=updates.client_updates * factors[:, None].to(updates.client_updates),
                squared_norms=updates.squared_norms * factors.square(),
            )
        params = (updates.global_params + self.step(updates)).cpu()
        if not all_finite(params):
            raise ValuationError("the aggregated model is not finite")
        weights = torch.full((updates.num_clients,), torch.nan)
        shares = buffer_factors / updates.num_clients
        buffers = combine_buffers(updates.global_buffers, updates.buffer_updates, shares).cpu()
        counters = largest_counters(updates.counters, weights)
        return ModelVectors(params, buffers, counters), Aggregation(weights=weights)
