"""Arrays that are not trained, in the hands of a hostile client: indices, counters, statistics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from torch import Tensor, nn

from fedif_flower import AFedSV, FedAvg, FedIF, Krum, Validation
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies.flower_rule import FlowerRule
from fedif_flower.strategies.reports import RoundReport
from tests.strategies.hostile import Clients, honest_parts


class Positions(nn.Module):
    """A tiny model that keeps an index, as BERT and ViT do: ``x`` plus a learned position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.register_buffer("position_ids", torch.arange(3)[None])
        self.register_buffer("mask", torch.tensor([True, True, False]))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``[n, 2]`` to ``[n, 2]``."""
        embedded = self.embedding(self.position_ids)[0]  # [3, 2]
        return inputs + (embedded * self.mask[:, None]).sum(dim=0)


def reply(message: Message, spoiled: Mapping[str, object] | None = None) -> Message:
    """Add 1 to every floating-point array, then fill the ``spoiled`` ones with a value."""
    arrays, metrics = honest_parts(message, 1.0)
    for name, received in message.content.array_records["arrays"].items():
        values = received.numpy()
        if not np.issubdtype(values.dtype, np.floating):
            arrays[name] = received
        if name in (spoiled or {}):
            arrays[name] = pack_array(np.full_like(values, spoiled[name]))
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}),
        reply_to=message,
    )


STRATEGIES = {
    "fedavg": lambda validation, base: FedAvg(**base),
    "fedif": lambda validation, base: FedIF(validation, **base),
    "afedsv": lambda validation, base: AFedSV(validation, **base),
    "krum": lambda validation, base: Krum(malicious_fraction=0.2, **base),
    "flower": lambda validation, base: FlowerRule(FlowerFedAvg(), **base),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("name", "value"), [("position_ids", 10**6), ("position_ids", -1), ("mask", True)]
)
def test_one_client_of_five_moves_no_index(strategy, name, value):
    model = Positions()
    clients = {i: lambda message, _: reply(message) for i in range(5)}
    clients[1] = lambda message, _: reply(message, {name: value})
    reports: list[RoundReport] = []
    validation = Validation(model, torch.ones(4, 2), torch.tensor([0, 1, 0, 1]), device="cpu")
    base = {"fraction_evaluate": 0.0, "on_round": reports.append, "device": "cpu"}
    result = STRATEGIES[strategy](validation, base).start(
        LocalGrid(Clients(clients), 5), model_arrays(model), num_rounds=2
    )
    for report in reports:
        assert (report.num_accepted, report.num_rejected, report.failed) == (4, 1, False)
        assert f"'{name}'" in report.clients[-1].rejection
        assert report.clients[-1].node.node_id == 1001
    for kept in ("position_ids", "mask"):
        assert result.arrays[kept].data == model_arrays(model)[kept].data
