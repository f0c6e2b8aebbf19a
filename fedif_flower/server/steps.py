"""A rule, and the step that its answer leads to: by weights, or by a step of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedif_flower.errors import ValuationError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.round import (
    Aggregation,
    ModelVectors,
    RoundUpdates,
    all_finite,
    combine_buffers,
    largest_counters,
)


class Rule(Protocol):
    """Takes a round's updates; returns weights ``[m]`` as an Aggregation, or a step ``[d]``.

    Strategies are rules by their :meth:`~fedif_flower.strategies.ScreenedStrategy.weigh`; any other
    callable by :class:`~fedif_flower.strategies.robust_rule.RobustRule`.
    """

    def __call__(self, updates: RoundUpdates) -> Aggregation | Tensor:
        """Return what the rule makes of the updates."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A part that remembers earlier rounds.

    Its state is made of dicts, lists, numbers, strings, ``None`` and tensors, so that it can be
    read back without running code. Clients are named in it by their lasting ``client_id`` (see
    :class:`~fedif_flower.messages.client_node.ClientNode`).
    """

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on; later rounds do not change it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        ...


@dataclass(frozen=True)
class Step:
    r"""A round's step as it was taken.

    .. math:: w_t - w_{t-1} = \sum_k \theta_k \sum_i a_i^{(t-k)} u_i^{(t-k)}

    with :math:`u_i^{(s)}` the updates of the round s that made a step, :math:`a_i^{(s)}` the
    coefficients applied to them and :math:`\theta_k` what a step counts for k steps later.

    Attributes
    ----------
    updates : RoundUpdates
        The replies :math:`u_i`. Their memory is used again for the next round's: what is needed
        longer than until :meth:`~fedif_flower.server.callbacks.Callback.on_replies` must be
        copied.
    nodes : sequence of ClientNode
        Who sent them, in the same order.
    before, after : ModelVectors
        The model that the clients received, and the one that the step led to, on the CPU.
    aggregation : Aggregation
        ``applied`` holds :math:`a_i`.
    shares : tuple of float
        :math:`\theta_0, \theta_1, \ldots`: empty where no step is carried on.
    """

    updates: RoundUpdates
    nodes: Sequence[ClientNode]
    before: ModelVectors
    after: ModelVectors
    aggregation: Aggregation
    shares: tuple[float, ...] = ()


RoundStatus = Literal["advanced", "kept", "failed"]
"""What a round made of the model: a new one; nothing, as the rule decided; or nothing."""


class Outcome(NamedTuple):
    """What a round led to: a model if there is one to go on with, weights and step.

    ``reason`` says why the model stays. A round whose accepted replies lead nowhere has weights,
    but no step.
    """

    status: RoundStatus
    arrays: ArrayRecord | None
    aggregation: Aggregation | None = None
    reason: str = ""
    step: Step | None = None


def why_it_stands_still(updates: RoundUpdates, aggregation: Aggregation) -> str:
    """Return why a round's accepted replies lead nowhere."""
    if aggregation.gives_nobody_weight:
        return "every accepted update has weight 0"
    if not bool(updates.squared_norms.any()):
        return "no accepted reply changes the model"
    return "what counts of the accepted updates cancels, or is too small to change the model"


def by_step(updates: RoundUpdates, step: Tensor) -> tuple[ModelVectors, Aggregation]:
    """Return the model one step ``[d]`` on; buffers are averaged, and no client has a weight: NaN.

    Raises
    ------
    ValuationError
        If the model is not finite.
    """
    params = (updates.global_params + step).cpu()
    if not all_finite(params):
        raise ValuationError("the aggregated model is not finite")
    weights = torch.full((updates.num_clients,), torch.nan)
    shares = updates.buffer_shortening / updates.num_clients
    buffers = combine_buffers(updates.global_buffers, updates.buffer_updates, shares).cpu()
    counters = largest_counters(updates.counters, weights)
    return ModelVectors(params, buffers, counters), Aggregation(weights=weights)
