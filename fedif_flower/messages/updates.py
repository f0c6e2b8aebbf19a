"""Accepted replies -> the tensors that the maths works with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedif_flower.aggregators.spread import bound_by_spread
from fedif_flower.messages.screening import AcceptedReply, Workspace
from fedif_flower.round import ModelVectors, RoundUpdates


def round_updates(
    server_round: int,
    accepted: Sequence[AcceptedReply],
    workspace: Workspace,
    received: ModelVectors,
    device: torch.device,
    seed: int = 0,
) -> RoundUpdates:
    """Return a round's accepted replies as tensors on a device.

    Parameters
    ----------
    server_round : int
        The round t.
    accepted : sequence of AcceptedReply
        The m replies.
    workspace : Workspace
        Its first m rows hold their updates; changes of buffers are bounded there, in place.
    received : ModelVectors
        The model that the clients were sent.
    device : torch.device
        Where the round is weighed.
    seed : int
        The run's, for rules that draw.
    """
    m = len(accepted)
    bound_by_spread(workspace.buffer_updates[:m])
    updates = RoundUpdates(
        server_round=server_round,
        client_ids=tuple(reply.node.client_id for reply in accepted),
        num_examples=torch.tensor([r.num_examples for r in accepted], dtype=torch.float64),
        model=ModelVectors(
            received.params.to(device), received.buffers.to(device), received.counters
        ),
        client_updates=workspace.kept(m).to(device),
        squared_norms=torch.tensor([r.squared_norm for r in accepted], dtype=torch.float64),
        buffer_updates=workspace.buffer_updates[:m].to(device),
        counters=[reply.counters for reply in accepted],
        names=workspace.layout,
        seed=seed,
    )
    return workspace.completed(updates)
