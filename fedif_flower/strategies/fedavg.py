"""FedAvg [McMahan et al., 2017] on the screened base.

Paper: https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.streaming import Noted, StreamRule


class FedAvg(ScreenedStrategy):
    r"""Weigh each client by its number of examples.

    .. math:: p_i = n_i / \sum_{j \in S_t} n_j

    with :math:`n_i` the examples that client i says it trained on, bounded by
    ``max_num_examples``. Parameters: see
    :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    can_stream = True
    can_mask = True

    def stream_rule(self, server_round: int) -> StreamRule:  # noqa: ARG002
        """Return the number of examples as all that is needed of a reply."""
        return lambda reply, _: Noted((reply.num_examples,))

    def needs_all_updates(self) -> str:
        """Return that ``max_examples_ratio`` needs the round's median, or nothing if it is off."""
        if self.limits.max_examples_ratio:
            return "max_examples_ratio takes the median number of examples; set it to 0"
        return ""

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the shares of the examples, ``[m]``."""
        return Aggregation(weights=updates.num_examples / updates.num_examples.sum())
