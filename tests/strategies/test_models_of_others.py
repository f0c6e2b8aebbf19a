"""Whole rounds with models that have more than plain parameters: tied ones, masks, odd dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from fedif_flower import FedAvg, FedProx, RobustRule
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import load_arrays, model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from fedif_flower.tasks.modules import tied_names
from tests.strategies.hostile import reply_of
from tests.strategies.kinds import KINDS, built

TOKENS = torch.tensor([0, 1, 2, 3, 0, 1])
NEXT = torch.tensor([1, 2, 3, 0, 1, 2])
UNTIED, UNMASKED, COUNTED = 1, 2, 3  # Partitions.


class LanguageModel(nn.Module):
    """Embedding and head share their weight; buffers have every dtype that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("allowed", torch.tensor([True, False]))
        self.register_buffer("rotary", torch.polar(torch.ones(2), torch.arange(2.0)))
        for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.int8):
            self.register_buffer(str(dtype)[6:], torch.tensor([0, 7], dtype=dtype))
        self.register_buffer("scale", torch.ones(1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scale * self.head(self.embedding(tokens)) + self.mask[-1]


def model() -> nn.Module:
    torch.manual_seed(0)
    return LanguageModel()


TIED = Setup(device="cpu", tied_keys=tied_names(model()))


def client(message: Message, context: Context) -> Message:
    """Take a small step; three of the partitions send what no honest client would."""
    partition_id = int(context.node_config["partition-id"])
    net = LanguageModel()
    load_arrays(net, message.content["arrays"])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.01 * (partition_id + 1)
    arrays = dict(model_arrays(net))
    if partition_id == UNTIED:
        arrays["head.weight"] = pack_array(arrays["head.weight"].numpy() + np.float32(1))
    elif partition_id == UNMASKED:
        arrays["mask"] = pack_array(np.zeros((4, 4), np.float32))
    elif partition_id == COUNTED:
        arrays["int8"] = pack_array(arrays["int8"].numpy() + np.int8(1))
    return reply_of(message, arrays, {"num-examples": 10})


TIED = Setup(device="cpu", tied_keys=tied_names(model()))  # Where nothing else tells.


@pytest.mark.parametrize("kind", KINDS)
def test_tied_parameters_and_odd_buffers_go_through_a_round(kind):
    # Nothing else tells these which arrays are one.
    told = {"setup": TIED} if kind in (FedAvg, FedProx, RobustRule) else {}
    strategy = built(kind, model(), (TOKENS, NEXT), **told)
    sent = model_arrays(model())
    result = strategy.start(LocalGrid(client, 8), sent, num_rounds=2)
    for report in strategy.history.rounds:
        assert not report.failed
        refused = {c.node.node_id - 1000: c.rejection for c in report.clients if c.rejection}
        assert refused.keys() == {UNTIED, UNMASKED, COUNTED}
        assert "'head.weight' differs from 'embedding.weight'" in refused[UNTIED]
        assert "'mask' is not as it was sent" in refused[UNMASKED]
        assert "'int8' was changed" in refused[COUNTED]
    state, before = result.arrays.to_torch_state_dict(), model().state_dict()
    assert list(state) == list(before)
    assert torch.equal(state["head.weight"], state["embedding.weight"])
    assert not torch.equal(state["head.weight"], before["head.weight"])
    for key in before.keys() - {"head.weight", "head.bias", "embedding.weight"}:
        assert torch.equal(state[key], before[key]), key
        assert state[key].dtype == before[key].dtype, key
