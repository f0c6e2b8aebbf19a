from __future__ import annotations

import torch
from flwr.app import RecordDict

from fedif_flower.client.reply import node_memory


def test_a_run_finds_what_it_left_and_no_other_does():
    state = RecordDict()
    with node_memory(state, "attack", "a") as memory:
        assert memory == {}
        memory["received"] = torch.tensor([1.0, 2.0])
    with node_memory(state, "attack", "b") as memory:
        assert memory == {}
    with node_memory(state, "attack", "a") as memory:
        assert memory["received"].tolist() == [1, 2]
        del memory["received"]
    with node_memory(state, "attack", "a") as memory:
        assert memory == {}


def test_an_honest_client_leaves_nothing_behind():
    state = RecordDict()
    with node_memory(state, "attack", "a"):
        pass
    assert not state
