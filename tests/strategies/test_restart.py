"""A strategy that is restarted goes on, to the bit, as one that never stopped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedif_flower.strategies as of
from fedif_flower import Validation
from fedif_flower.aggregators import CentredClipping, FedAdp
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import Clip, FedAvgM
from tests.strategies.lines import Movers

GENERATOR = torch.Generator().manual_seed(0)
DATA = torch.randn(12, 2, generator=GENERATOR), torch.arange(12) % 2
MOVERS = Movers((0.3 * torch.randn(6, 6, generator=GENERATOR)).tolist(), [*range(10, 16)])


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 2)


def judge() -> Validation:
    return Validation(model(), *DATA, device="cpu")


CORRECTED = of.Weighting(bias_correction=True)
STRATEGIES = {
    "FedAvg": of.FedAvg,
    "momentum": lambda **base: of.FedAvg(stages=[Clip(1.0), FedAvgM(0.5, 0.5)], **base),
    "FedIF": lambda **base: of.FedIF(judge(), **base),
    "bias-corrected": lambda **base: of.FedIF(judge(), weighting=CORRECTED, **base),
    "InfluenceDescent": lambda **base: of.InfluenceDescent(judge(), **base),
    "AFedSV": lambda **base: of.AFedSV(judge(), **base),
    "SFedAvg": lambda **base: of.SFedAvg(judge(), **base),
    "ShapFed": lambda **base: of.ShapFed(model(), **base),
    "FLTrust": lambda **base: of.FLTrust(of.RootTraining(model(), *DATA), **base),
    "FedAdp": lambda **base: of.RobustRule(FedAdp(), **base),
    "CentredClipping": lambda **base: of.RobustRule(CentredClipping(), **base),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_two_rounds_and_two_are_four(name):
    base = {"fraction_train": 0.7, "fraction_evaluate": 0.0, "setup": of.Setup(device="cpu")}
    whole, half, resumed = (STRATEGIES[name](**base) for _ in range(3))
    expected = whole.start(LocalGrid(MOVERS, 6), model_arrays(model()), num_rounds=4).arrays
    arrays = half.start(LocalGrid(MOVERS, 6), model_arrays(model()), num_rounds=2).arrays
    resumed.load_state_dict(half.state_dict())
    resumed.completed_rounds = 2
    found = resumed.start(LocalGrid(MOVERS, 6), arrays, num_rounds=2).arrays
    assert all(found[key].data == expected[key].data for key in expected)
    figures = [
        [(c.node.node_id, c.weight, c.weight_score, c.score) for c in report.clients]
        for strategy in (whole, resumed)
        for report in strategy.history.rounds[-2:]
    ]
    assert figures[:2] == figures[2:]
