"""A strategy that knows which clients are malicious: the best that leaving them out can reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.setup import BaseArguments


class OracleExclusion(ScreenedStrategy):
    r"""FedAvg over the honest clients of a round, which an oracle names.

    .. math:: p_i = n_i / \sum_{j \in H_t} n_j \text{ for } i \in H_t, \text{ else } 0

    with :math:`n_i` the number of client i's examples and :math:`H_t` the honest clients of round
    t. If there are none, the model stays as it is. Other strategies are compared with this one; it
    works in simulations alone, since nobody knows :math:`H_t` elsewhere.

    Parameters
    ----------
    is_malicious : callable
        Takes a client and returns whether it is malicious.
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).
    """

    def __init__(
        self, is_malicious: Callable[[ClientNode], bool], **base: Unpack[BaseArguments]
    ) -> None:
        super().__init__(**base)
        self.is_malicious = is_malicious

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return weights ``[m]``: each honest client's share of the honest clients' examples."""
        assert self.current is not None  # weigh() is called within a round.
        # Includes clients that earlier rounds asked, whose replies have come only now.
        nodes = [question.node for question in self.current.asked.values()]
        malicious = {node.client_id for node in nodes if self.is_malicious(node)}
        is_honest = torch.tensor([client_id not in malicious for client_id in updates.client_ids])
        examples = torch.where(is_honest, updates.num_examples, 0.0)
        # Without honest clients all weights are 0, not NaN.
        return Aggregation(weights=examples / examples.sum().clamp_min(1e-300))
