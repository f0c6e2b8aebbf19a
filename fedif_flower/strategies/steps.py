"""The step that a round took: the updates, and what each was really multiplied by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flwr.app import ArrayRecord

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates


@dataclass(frozen=True)
class Step:
    r"""A round's step, :math:`s_t = \beta s_{t-1} + \sum_i a_i u_i`, as it was applied.

    Attributes
    ----------
    updates : RoundUpdates
        The replies :math:`u_i`. Their memory is used again for the next round's: what is needed
        longer than until :meth:`~fedif_flower.strategies.callbacks.Callback.on_replies` must be
        copied.
    nodes : sequence of ClientNode
        Who sent them, in the same order.
    before, after : ModelVectors
        The model that the clients received, and the one that the step led to, on the CPU.
    aggregation : Aggregation
        ``applied``: :math:`a_i`, bounds included; ``carried``: :math:`\beta`.
    """

    updates: RoundUpdates
    nodes: Sequence[ClientNode]
    before: ModelVectors
    after: ModelVectors
    aggregation: Aggregation


class Outcome(NamedTuple):
    """What a round led to: a model if it is another one, weights and step, or why it failed."""

    arrays: ArrayRecord | None
    aggregation: Aggregation | None
    reason: str = ""
    step: Step | None = None
