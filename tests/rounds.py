"""A round as rules and stages get it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedif_flower.round import ModelVectors, RoundUpdates


def a_round(updates: Tensor, **given: Any) -> RoundUpdates:
    """Return a round of clients 0 to m - 1 with these updates ``[m, d]``; the model is 0."""
    m, d = updates.shape
    buffers = given.get("buffer_updates", torch.zeros(m, 0))
    usual = {
        "server_round": 1,
        "client_ids": tuple(range(m)),
        "num_examples": torch.ones(m, dtype=torch.float64),
        "model": ModelVectors(torch.zeros(d, dtype=updates.dtype), torch.zeros(buffers.shape[1])),
        "client_updates": updates,
        "squared_norms": updates.double().square().sum(dim=1),
        "buffer_updates": buffers,
    }
    return RoundUpdates(**(usual | given))
