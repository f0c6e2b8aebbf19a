from __future__ import annotations

from dataclasses import dataclass

import torch

from fedif_flower import Krum
from fedif_flower.round import ModelVectors, RoundUpdates


@dataclass
class Client:
    update: float
    steps: int


def a_round(*clients: Client) -> RoundUpdates:
    updates = torch.tensor([[client.update] for client in clients])
    m = len(clients)
    return RoundUpdates(
        server_round=1,
        client_ids=tuple(range(m)),
        num_examples=torch.ones(m),
        model=ModelVectors(
            torch.zeros(1), torch.zeros(0), {"num_batches_tracked": torch.tensor(500)}
        ),
        client_updates=updates,
        squared_norms=updates.square().sum(dim=1),
        buffer_updates=torch.zeros(m, 0),
        counters=[{"num_batches_tracked": torch.tensor(500 + c.steps)} for c in clients],
    )


# Two honest clients beside each other, two that send noise; noise and noise took equally long.
ROUND = a_round(Client(0.0, 150), Client(0.1, 210), Client(-9.0, 190), Client(8.0, 190))


def test_trained_parameters_decide():
    aggregation = Krum(malicious_fraction=0.5)(ROUND)
    assert aggregation.weights.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_counts_of_steps_hide_them_where_they_are_taken_along():
    aggregation = Krum(malicious_fraction=0.5, distances="state")(ROUND)
    # One neighbour each: 60^2 + 0.1^2 and about 20^2 for the honest, 17^2 for the others.
    assert aggregation.weights.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert aggregation.scores is not None
    assert aggregation.scores.tolist()[2:] == [-289.0, -289.0]
