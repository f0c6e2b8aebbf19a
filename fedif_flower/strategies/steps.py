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
    r"""A round's step as it was taken.

    .. math:: w_t - w_{t-1} = \sum_k \theta_k \sum_i a_i^{(t-k)} u_i^{(t-k)}

    with :math:`u_i^{(s)}` the updates of the round s that made a step, :math:`a_i^{(s)}` the
    coefficients applied to them and :math:`\theta_k` what a step counts for k steps later.

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


class Outcome(NamedTuple):
    """What a round led to: a model if there is one to go on with, weights and step.

    ``reason`` says why the model stays. A round whose accepted replies lead nowhere has weights,
    but no step; ``kept`` where these are all 0, which is the rule's answer and no failure.
    """

    arrays: ArrayRecord | None
    aggregation: Aggregation | None
    reason: str = ""
    step: Step | None = None
    kept: bool = False


def why_it_stands_still(updates: RoundUpdates, *, kept: bool) -> str:
    """Return why a round's accepted replies lead nowhere."""
    if kept:
        return "every accepted update has weight 0"
    if not bool(updates.squared_norms.any()):
        return "no accepted reply changes the model"
    return "the accepted updates cancel, or are too small to change the model"
