"""Robust rules on the screened base: any of them, by the instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from fedif_flower.errors import ConfigError, ValuationError, require
from fedif_flower.messages.screening import AcceptedReply
from fedif_flower.round import (
    Aggregation,
    ModelVectors,
    RoundUpdates,
    all_finite,
    combine_buffers,
    largest_counters,
)
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.base import ScreenedStrategy
from fedif_flower.strategies.state import Stateful

Rule = Callable[[RoundUpdates], Aggregation | Tensor]
"""Takes a round's updates; returns an Aggregation with weights ``[m]``, or a step ``[d]``."""


class RobustRule(ScreenedStrategy):
    """Screen and sort the replies, then let a robust rule make one step of the updates.

    Parameters
    ----------
    rule : callable
        One of :mod:`fedif_flower.aggregators`, such as ``Median()``, or of your own. It is called
        with the round's :class:`~fedif_flower.round.RoundUpdates` and returns either a step
        ``[d]``, along which the parameters move, or, if its attribute ``gives_weights`` is true, an
        :class:`~fedif_flower.round.Aggregation` with weights ``[m]``. Beside a step, buffers are
        averaged, and no client has a weight of its own: NaN. A rule with ``state_dict`` and
        ``load_state_dict`` is part of checkpoints; one that remembers clients by their ids says so
        by an attribute ``knows_clients``. Where its ``takes_one_model`` is true, the
        parameters of the one model with a weight are taken over bit for bit.
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.strategies.base.ScreenedStrategy`).

    Examples
    --------
    >>> strategy = RobustRule(Median(), fraction_train=0.5)      # doctest: +SKIP
    """

    def __init__(
        self,
        rule: Rule,
        **base: Unpack[BaseArguments],
    ) -> None:
        require(callable(rule), "rule", rule, "a callable, such as Median()")
        self.takes_groups = not getattr(rule, "knows_clients", False)
        super().__init__(
            **base,
        )
        self.rule = rule
        self.combines_updates = bool(getattr(rule, "gives_weights", False))
        takes_one = bool(getattr(rule, "takes_one_model", False))
        self.keep_arrays = takes_one and not self.stages.change_updates
        if self.stages.choose_steps and not self.combines_updates:
            raise ConfigError(f"stages = {self.stages}; {rule!r} leaves no step to choose")

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds: the rule too, if it does."""
        parts = super().stateful()
        return parts | ({"rule": self.rule} if isinstance(self.rule, Stateful) else {})

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return what a rule with weights makes of a round."""
        aggregation = self.rule(updates)
        if not isinstance(aggregation, Aggregation):
            name = type(self.rule).__name__
            raise ValuationError(f"{name} gives weights: it has to return an Aggregation")
        return aggregation

    def merge(
        self, updates: RoundUpdates, accepted: Sequence[AcceptedReply]
    ) -> tuple[ModelVectors, Aggregation]:
        """Return the model that the rule's weights, or its step, lead to."""
        if not self.combines_updates:
            return self._stepped(updates)
        vectors, aggregation = super().merge(updates, accepted)
        if aggregation.noise is not None:
            vectors = replace(vectors, params=vectors.params + aggregation.noise)
        if self.keep_arrays:  # A sum of updates would round them.
            arrays = accepted[int(aggregation.weights.argmax())].arrays
            assert arrays is not None  # keep_arrays
            vectors = replace(vectors, params=self.model.layout.to_vectors(arrays).params)
        return vectors, aggregation

    def _stepped(self, updates: RoundUpdates) -> tuple[ModelVectors, Aggregation]:
        """Return the model one step of the rule on."""
        step = self.rule(updates.shortened())
        if not isinstance(step, Tensor):
            name = type(self.rule).__name__
            raise ValuationError(f"{name} gives no weights: it has to return a step [d]")
        params = (updates.global_params + step).cpu()
        if not all_finite(params):
            raise ValuationError("the aggregated model is not finite")
        weights = torch.full((updates.num_clients,), torch.nan)
        shares = updates.buffer_shortening / updates.num_clients
        buffers = combine_buffers(updates.global_buffers, updates.buffer_updates, shares).cpu()
        counters = largest_counters(updates.counters, weights)
        return ModelVectors(params, buffers, counters), Aggregation(weights=weights)
