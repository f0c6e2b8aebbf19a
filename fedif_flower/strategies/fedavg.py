"""FedAvg [McMahan et al., 2017]: weights by numbers of examples.

Paper: https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.server.loop import ScreenedStrategy


class FedAvg(ScreenedStrategy):
    r"""Weigh each client by its number of examples.

    .. math:: p_i = n_i / \sum_{j \in S_t} n_j

    with :math:`S_t` the clients of round t, and :math:`n_i` the number of examples that client i
    says it trained on, at most ``max_examples_ratio`` times the round's median. Parameters: see
    :class:`~fedif_flower.server.loop.ScreenedStrategy`.
    """

    reads_updates = False

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights ``[m]``: each client's share of the round's examples."""
        return Aggregation(weights=updates.num_examples / updates.num_examples.sum())

    def why_weights_differ(self) -> str:
        """Return why members with equally many examples may differ in weight; empty: they cannot.

        They may differ if a subclass weighs in its own way, if there are stages, or if replies hold
        more than a model or may come late.
        """
        kind = type(self)
        if kind.weigh is not FedAvg.weigh or kind.aggregate is not FedAvg.aggregate:
            return super().why_weights_differ()
        if any(self.stages):
            return f"stages = {self.stages} change updates by what others send, or the step"
        if not self.intake.is_plain:
            return "clients send more than a model, or another thing"
        return ""
