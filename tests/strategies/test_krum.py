from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedif_flower import Krum
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import RobustRule, Setup
from tests.strategies.hostile import Clients, _fill, spoiled_reply


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


def test_the_chosen_model_is_taken_over_bit_for_bit():
    # From 100 to 0.1: a step of -99.9 is rounded, and what it leads to is not 0.1.
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 100.0)
    before, sent = torch.tensor(100.0), torch.tensor(0.1)
    assert before + (sent - before) != sent

    def reply(message, _):
        return spoiled_reply(message, _fill(0.1))

    strategy = RobustRule(
        Krum(malicious_fraction=0.25), fraction_evaluate=0.0, setup=Setup(device="cpu")
    )
    grid = LocalGrid(Clients(dict.fromkeys(range(4), reply)), 4)
    result = strategy.start(grid, model_arrays(model), num_rounds=1)
    assert result.arrays["weight"].numpy() == sent.numpy()
