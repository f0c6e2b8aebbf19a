"""An oracle that knows who is malicious: what leaving clients out can reach, in simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.setup import BaseArguments


class OracleExclusion(ScreenedStrategy):
    r"""FedAvg over the honest clients of a round, told by an oracle who they are.

    .. math:: p_i = n_i / \sum_{j \in H_t} n_j \text{ for } i \in H_t, \text{ else } 0

    with :math:`H_t` the round's honest clients. Where there are none, the model stays as it is. It
    is a reference for other strategies: nobody knows :math:`H_t` outside of a simulation.

    Parameters
    ----------
    is_malicious : callable
        Tells of a client whether it misbehaves.
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
        """Return the shares of the honest clients' examples, ``[m]``."""
        assert self.current is not None  # A round is weighed.
        # Those asked in earlier rounds too, whose replies have come only now.
        nodes = [question.node for question in self.current.asked.values()]
        malicious = {node.client_id for node in nodes if self.is_malicious(node)}
        is_honest = torch.tensor([client_id not in malicious for client_id in updates.client_ids])
        examples = torch.where(is_honest, updates.num_examples, 0.0)
        return Aggregation(weights=examples / examples.sum().clamp_min(1e-300))
