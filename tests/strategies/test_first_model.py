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
    LeaveOneOut,
    PathAttribution,
    SFedAvg,
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


def net(classes: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, classes)


def judge(model: nn.Module | None = None) -> Validation:
    return Validation(model or net(), ROWS, LABELS, device="cpu")


class Nobody(LocalGrid):
    """A grid whose clients must not be asked."""

    def push_messages(self, messages):
        raise AssertionError("a client was asked")


STRATEGIES = {
    "FedIF": lambda model, **base: FedIF(judge(model), **base),
    "InfluenceDescent": lambda model, **base: InfluenceDescent(judge(model), **base),
    "AFedSV": lambda model, **base: AFedSV(judge(model), **base),
    "LeaveOneOut": lambda model, **base: LeaveOneOut(judge(model), **base),
    "SFedAvg": lambda model, **base: SFedAvg(judge(model), **base),
    "ShapFed": lambda model, **base: ShapFed(model, **base),
    "FLTrust": lambda model, **base: FLTrust(RootTraining(model, ROWS, LABELS), **base),
    "PathAttribution": lambda model, **base: FedAvg(
        callbacks=[PathAttribution(judge(model))],
        **base | {"setup": replace(base["setup"], trainable_keys=judge(model).parameter_names)},
    ),
}
BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_model_of_other_shapes_is_refused_before_the_first_round(name):
    strategy = STRATEGIES[name](net(3), **BASE)
    words = rf"{name} was given a model in which 'weight' has shape \[3, 4\]; .* \[5, 4\]"
    with pytest.raises(ConfigError, match=words):
        strategy.start(Nobody(Clients(), 3), model_arrays(net(5)), num_rounds=1)
    if name == "PathAttribution":
        return  # It looks once the strategy has begun.
    result = strategy.start(LocalGrid(Clients(), 3), model_arrays(net(3)), num_rounds=1)
    assert list(result.arrays) == ["weight", "bias"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (FedIF, "validation = 0.5; allowed: a Validation"),
        (AFedSV, "validation = 0.5; allowed: a Validation"),
        (InfluenceDescent, "validation = 0.5; allowed: a Validation"),
        (SFedAvg, "validation = 0.5; allowed: a Validation"),
        (ShapFed, "model = 0.5; allowed: a Module"),
        (FLTrust, "root = 0.5; allowed: a RootTraining"),
    ],
)
def test_flower_s_first_argument_in_place_of_what_judges(kind, name):
    with pytest.raises(ConfigError, match=rf"{kind.__name__}: {name}.*fraction_train=0\.5"):
        kind(0.5)


@pytest.mark.parametrize("kind", [">f4", ">f8"])
def test_a_model_in_the_other_byte_order_is_refused_before_the_first_round(kind):
    arrays = ArrayRecord({"w": Array(np.ones(3, kind))})
    with pytest.raises(ValueError, match=rf"'w' has dtype {kind}; .*this machine's byte order"):
        FedAvg(**BASE).start(Nobody(Clients(), 3), arrays, num_rounds=1)


def test_a_strategy_goes_on_from_where_it_led_and_from_nowhere_else():
    strategy = FedAvg(**BASE)
    more = Clients(dict.fromkeys(range(3), lambda m, _: step_reply(m, 1.0)))
    first = model_arrays(net())
    result = strategy.start(LocalGrid(more, 3), first, num_rounds=1)
    assert strategy.start(LocalGrid(more, 3), result.arrays, num_rounds=1).arrays
    for other in (first, model_arrays(net(5)), model_arrays(net().double())):
        with pytest.raises(ConfigError, match="begun with another model: make a new strategy"):
            strategy.start(Nobody(Clients(), 3), other, num_rounds=1)


# -- bfloat16 -----------------------------------------------------------------------------------


IN_HALF = {
    "FedIF": lambda judge, **base: FedIF(judge, **base),
    "InfluenceDescent": lambda judge, **base: InfluenceDescent(judge, **base),
    "AFedSV": lambda judge, **base: AFedSV(ShapleyValuation(judge, utility="loss"), **base),
    "ShapFed": lambda judge, **base: ShapFed(net().bfloat16(), **base),
    "FLTrust": lambda judge, **base: FLTrust(
        RootTraining(net().bfloat16(), ROWS.bfloat16(), LABELS), **base
    ),
    "PathAttribution": lambda judge, **base: FedAvg(callbacks=[PathAttribution(judge)], **base),
}


@pytest.mark.parametrize("name", IN_HALF)
def test_every_kind_of_strategy_takes_a_model_in_bfloat16(name):
    def client(message: Message, context: Context) -> Message:
        own = net().bfloat16()
        own.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loss = nn.functional.cross_entropy(own(ROWS.bfloat16()), LABELS)
        loss.backward()
        with torch.no_grad():
            for parameter in own.parameters():
                parameter -= 0.5 * parameter.grad
        content = {"arrays": model_arrays(own), "metrics": MetricRecord({"num-examples": 10})}
        return Message(RecordDict(content), reply_to=message)

    judge = Validation(net().bfloat16(), ROWS.bfloat16(), LABELS, device="cpu")
    strategy = IN_HALF[name](judge, **BASE)
    strategy.start(LocalGrid(client, 3), model_arrays(net().bfloat16()), num_rounds=2)
    assert [report.failed for report in strategy.history.rounds] == [False, False]
    params = strategy.model.vectors.params
    assert judge.loss(params) < judge.loss(model_params())


def model_params() -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in net().bfloat16().parameters()])
