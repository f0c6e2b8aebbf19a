"""SCAFFOLD's vector where most of a round are hostile, as in each round of one hostile member."""

from __future__ import annotations

import pytest
import torch

from fedif_flower import FedAvg, Setup
from fedif_flower.local_methods import Scaffold
from fedif_flower.messages.instructions import VECTOR_KEY, VECTOR_RECORD
from fedif_flower.messages.models import model_arrays, tensor_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from tests.strategies.lines import Movers, point


class Changing(Movers):
    """Three members send changes of the vector by 1, but the third by 1e15; they note it."""

    def __init__(self):
        super().__init__([[1.0, 0.0]] * 3)
        self.got = []

    def train(self, message, partition_id):
        first, _ = message.content[VECTOR_RECORD][VECTOR_KEY].numpy().tolist()
        self.got.append(first)
        reply = super().train(message, partition_id)
        change = torch.full((2,), 1e15 if partition_id == 2 else 1.0)
        reply.content[VECTOR_RECORD] = tensor_arrays({VECTOR_KEY: change})
        return reply


class OneByOne(FedAvg):
    """Asks one member after the other, each in a round of its own."""

    def __init__(self, first: int = 0):
        setup = Setup(device="cpu", trainable_keys=["weight"], local_method=Scaffold())
        super().__init__(setup=setup, fraction_evaluate=0.0, min_train_nodes=1)
        self.first = first

    def select(self, nodes, server_round):
        return [nodes[(self.first + server_round - 1) % len(nodes)]]


def test_a_round_of_one_hostile_member_moves_the_vector_by_ten_usual_lengths():
    clients = Changing()
    OneByOne().start(LocalGrid(clients, 3), model_arrays(point()), num_rounds=5)
    # The mean of what the three have sent: in the end (1 + 1 + 10 + 1) / 3.
    assert clients.got == pytest.approx([0.0, 1 / 3, 2 / 3, 4.0, 13 / 3])


@pytest.mark.parametrize(("of_earlier_version", "moved_by"), [(False, 10.0), (True, 1e15)])
def test_a_run_that_goes_on_knows_how_long_changes_were(of_earlier_version, moved_by):
    stopped, again = OneByOne(), OneByOne(first=2)
    stopped.start(LocalGrid(Changing(), 3), model_arrays(point()), num_rounds=2)
    state = stopped.intake.stateful()["local-guide"].state_dict()
    if of_earlier_version:
        del state["lengths"]
    again.intake.stateful()["local-guide"].load_state_dict(state)
    again.intake.go_on()
    clients = Changing()
    again.start(LocalGrid(clients, 3), model_arrays(point()), num_rounds=2)
    assert clients.got == pytest.approx([2 / 3, (2 + moved_by) / 3])
