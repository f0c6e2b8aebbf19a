"""The model that a run begins with: what does not fit is said before anybody is asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import nn

from fedif_flower import (
    AFedSV,
    FedAvg,
    FedIF,
    FLTrust,
    InfluenceDescent,
    PathAttribution,
    ShapFed,
    Validation,
    model_arrays,
)
from fedif_flower.errors import ConfigError
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import RootTraining, Setup
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.strategies.hostile import Clients, step_reply

ROWS, LABELS = torch.eye(4), torch.tensor([0, 1, 2, 0])
BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


def net(classes: int = 3, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, classes, dtype=dtype)


def judge(model: nn.Module) -> Validation:
    return Validation(model, ROWS.to(model.weight.dtype), LABELS, device="cpu")


class Nobody(LocalGrid):
    """A grid whose clients must not be asked."""

    def push_messages(self, messages):
        raise AssertionError("a client was asked")


def attributed(model: nn.Module) -> FedAvg:
    judged = judge(model)
    setup = replace(BASE["setup"], trainable_keys=judged.parameter_names)
    return FedAvg(callbacks=[PathAttribution(judged)], **BASE | {"setup": setup})


STRATEGIES = {
    "FedIF": lambda model: FedIF(judge(model), **BASE),
    "InfluenceDescent": lambda model: InfluenceDescent(judge(model), **BASE),
    "AFedSV": lambda model: AFedSV(ShapleyValuation(judge(model), utility="loss"), **BASE),
    "ShapFed": lambda model: ShapFed(model, **BASE),
    "FLTrust": lambda model: FLTrust(
        RootTraining(model, ROWS.to(model.weight.dtype), LABELS), **BASE
    ),
    "PathAttribution": attributed,
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_model_of_other_shapes_is_refused_before_the_first_round(name):
    strategy = STRATEGIES[name](net(3))
    words = rf"{name} was given a model in which 'weight' has shape \[3, 4\]; .* \[5, 4\]"
    with pytest.raises(ConfigError, match=words):
        strategy.start(Nobody(Clients(), 3), model_arrays(net(5)), num_rounds=1)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (FedIF, "validation = 0.5; allowed: a Validation"),
        (InfluenceDescent, "validation = 0.5; allowed: a Validation"),
        (ShapFed, "model = 0.5; allowed: a Module"),
        (FLTrust, "root = 0.5; allowed: a RootTraining"),
    ],
)
def test_flower_s_first_argument_in_place_of_what_judges(kind, name):
    with pytest.raises(ConfigError, match=rf"{kind.__name__}: {name}.*fraction_train=0\.5"):
        kind(0.5)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (Array(np.ones(3, ">f4")), r"'w' has dtype >f4; .*this machine's byte order"),
        (Array(np.array([np.nan], np.float32)), "'w' of the global model has NaN"),
    ],
)
def test_a_model_that_cannot_be_averaged_is_refused_before_anybody_is_waited_for(array, words):
    with pytest.raises(ValueError, match=words):
        FedAvg(**BASE).start(Nobody(Clients(), 0), ArrayRecord({"w": array}), num_rounds=1)


def test_a_strategy_goes_on_from_where_it_led_and_from_nowhere_else():
    strategy = FedAvg(**BASE)
    grid = LocalGrid(Clients(dict.fromkeys(range(3), lambda m, _: step_reply(m, 1.0))), 3)
    first = model_arrays(net())
    result = strategy.start(grid, first, num_rounds=1)
    assert strategy.start(grid, result.arrays, num_rounds=1).arrays
    for other in (first, model_arrays(net(5)), model_arrays(net().double())):
        with pytest.raises(ConfigError, match="begun with another model: make a new strategy"):
            strategy.start(Nobody(Clients(), 3), other, num_rounds=1)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_kind_of_strategy_takes_a_model_in_bfloat16(name):
    def client(message: Message, context: Context) -> Message:
        own = net(dtype=torch.bfloat16)
        own.load_state_dict(message.content["arrays"].to_torch_state_dict())
        nn.functional.cross_entropy(own(ROWS.bfloat16()), LABELS).backward()
        torch.optim.SGD(own.parameters(), 0.5).step()
        content = {"arrays": model_arrays(own), "metrics": MetricRecord({"num-examples": 10})}
        return Message(RecordDict(content), reply_to=message)

    start = net(dtype=torch.bfloat16)
    strategy, judged = STRATEGIES[name](net(dtype=torch.bfloat16)), judge(start)
    before = torch.cat([p.detach().flatten() for p in start.parameters()])
    strategy.start(LocalGrid(client, 3), model_arrays(start), num_rounds=2)
    assert [report.failed for report in strategy.history.rounds] == [False, False]
    assert judged.loss(strategy.model.vectors.params) < judged.loss(before)
