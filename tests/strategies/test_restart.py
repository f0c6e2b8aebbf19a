"""A strategy that is restarted goes on, to the bit, as one that never stopped."""

from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

import fedif_flower.strategies as of
from fedif_flower import Validation
from fedif_flower.aggregators import CentredClipping, FedAdp
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import Clip, FedAvgM
from fedif_flower.strategies import RootTraining, Setup, Weighting
from tests.strategies.lines import Movers

GENERATOR = torch.Generator().manual_seed(0)
ROWS, LABELS = torch.randn(12, 2, generator=GENERATOR), torch.arange(12) % 2
CLIENTS = 6
MOVERS = Movers((0.3 * torch.randn(CLIENTS, 6, generator=GENERATOR)).tolist(), [*range(10, 16)])


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 2)


def judge() -> Validation:
    return Validation(model(), ROWS, LABELS, device="cpu")


STRATEGIES = {
    "FedAvg": of.FedAvg,
    "momentum": lambda **base: of.FedAvg(stages=[Clip(1.0), FedAvgM(0.5, 0.5)], **base),
    "FedIF": lambda **base: of.FedIF(judge(), **base),
    "bias-corrected": lambda **base: of.FedIF(
        judge(), weighting=Weighting(bias_correction=True), **base
    ),
    "InfluenceDescent": lambda **base: of.InfluenceDescent(judge(), **base),
    "AFedSV": lambda **base: of.AFedSV(judge(), **base),
    "SFedAvg": lambda **base: of.SFedAvg(judge(), **base),
    "ShapFed": lambda **base: of.ShapFed(model(), **base),
    "FLTrust": lambda **base: of.FLTrust(RootTraining(model(), ROWS, LABELS), **base),
    "FedAdp": lambda **base: of.RobustRule(FedAdp(), **base),
    "CentredClipping": lambda **base: of.RobustRule(CentredClipping(), **base),
}


def begin(name: str, arrays: ArrayRecord, rounds: int, after=None):
    """Run rounds, perhaps those that come after another strategy's."""
    strategy = STRATEGIES[name](
        fraction_train=0.7, fraction_evaluate=0.0, setup=Setup(device="cpu")
    )
    if after is not None:
        strategy.load_state_dict(after.state_dict())
        strategy.completed_rounds = 2
    result = strategy.start(LocalGrid(MOVERS, CLIENTS), arrays, num_rounds=rounds)
    figures = [
        (client.node.node_id, client.weight, client.weight_score, client.score)
        for report in strategy.history.rounds[-2:]
        for client in report.clients
    ]
    return strategy, result.arrays, figures


@pytest.mark.parametrize("name", STRATEGIES)
def test_two_rounds_and_two_are_four(name):
    first = model_arrays(model())
    _, whole, expected = begin(name, first, 4)
    half, arrays, _ = begin(name, first, 2)
    _, resumed, figures = begin(name, arrays, 2, after=half)
    assert all(resumed[key].data == whole[key].data for key in whole)
    assert figures == expected
