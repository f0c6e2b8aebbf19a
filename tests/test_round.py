from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedif_flower.round import ModelVectors, RoundUpdates
from tests.rounds import a_round

GLOBAL = torch.tensor([1.0, 2.0])
CLIENTS = torch.tensor([[3.0, 0.0], [5.0, 4.0]]) - GLOBAL


class Mean:
    """One buffer, called mean."""

    def named_buffers(self, vectors: ModelVectors) -> dict[str, Tensor]:
        return {**self.split_buffers(vectors.buffers), **vectors.counters}

    def split_buffers(self, buffers: Tensor) -> dict[str, Tensor]:
        return {"mean": buffers}


def two_clients(sent: Mapping[str, Tensor] | None = None, received=()) -> RoundUpdates:
    model = ModelVectors(GLOBAL, torch.tensor([0.5]), sent or {})
    buffers = torch.tensor([[0.25], [0.75]])
    own = {"model": model, "buffer_updates": buffers, "counters": received, "names": Mean()}
    return a_round(CLIENTS, **own)


def test_state_updates_are_changes_of_everything_that_was_sent():
    updates = two_clients(
        {"seen": torch.tensor(100)},
        received=[{"seen": torch.tensor(130)}, {"seen": torch.tensor(195)}],
    )
    assert updates.state_updates().tolist() == [[2.0, -2.0, 0.25, 30.0], [4.0, 2.0, 0.75, 95.0]]
    # A flag is no number that torch subtracts.
    updates = two_clients(
        {"on": torch.tensor(False)},
        received=[{"on": torch.tensor(False)}, {"on": torch.tensor(True)}],
    )
    assert updates.state_updates()[:, -1].tolist() == [0.0, 1.0]
