"""A rule, and the model that its answer leads to: by weights, or by a step of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.round import (
    Aggregation,
    ModelVectors,
    RoundUpdates,
    all_finite,
    combine_buffers,
    largest_counters,
)
from fedif_flower.stages import Stages


class Rule(Protocol):
    """Takes a round's updates; returns weights ``[m]`` as an Aggregation, or a step ``[d]``.

    Strategies are rules by their :meth:`~fedif_flower.strategies.ScreenedStrategy.weigh`; any other
    callable by :class:`~fedif_flower.strategies.robust_rule.RobustRule`.
    """

    def __call__(self, updates: RoundUpdates) -> Aggregation | Tensor:
        """Return what the rule makes of the updates."""
        ...


def as_weights(found: Aggregation | Tensor) -> Aggregation:
    """Return a rule's weights, or raise ValuationError for a step."""
    if not isinstance(found, Aggregation):
        raise ValuationError("the rule gives weights: it has to return an Aggregation")
    return found


def by_weights(
    updates: RoundUpdates, aggregation: Aggregation, stages: Stages
) -> tuple[ModelVectors, Aggregation]:
    """Return the model that a round's weights lead to, and what the updates were multiplied by."""
    if updates.hidden is not None:
        weights = aggregation.weights
        factors = updates.hidden.cut(weights.cpu() * updates.shortening)
        aggregation = replace(aggregation, weights=weights * factors.to(weights))
    step = stages.settle(updates, aggregation.weights)
    params = step.params if aggregation.noise is None else step.params + aggregation.noise
    counters = largest_counters(updates.counters, aggregation.weights)
    vectors = ModelVectors(params, step.buffers, counters)
    return vectors, replace(aggregation, applied=step.coefficients)


def by_step(updates: RoundUpdates, step: Aggregation | Tensor) -> tuple[ModelVectors, Aggregation]:
    """Return the model one step ``[d]`` on; buffers are averaged, and no client has a weight: NaN.

    Raises
    ------
    ValuationError
        If it is no step, or the model is not finite.
    """
    if not isinstance(step, Tensor):
        raise ValuationError("the rule gives no weights: it has to return a step [d]")
    params = (updates.global_params + step).cpu()
    if not all_finite(params):
        raise ValuationError("the aggregated model is not finite")
    weights = torch.full((updates.num_clients,), torch.nan)
    shares = updates.buffer_shortening / updates.num_clients
    buffers = combine_buffers(updates.global_buffers, updates.buffer_updates, shares).cpu()
    counters = largest_counters(updates.counters, weights)
    return ModelVectors(params, buffers, counters), Aggregation(weights=weights)
