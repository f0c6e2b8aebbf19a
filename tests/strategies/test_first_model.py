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
from fedif_flower.aggregators import CentredClipping
from fedif_flower.errors import ConfigError
from fedif_flower.messages.arrays import pack_array
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import FedAvgM
from fedif_flower.strategies import RobustRule, RootTraining, Setup, Weighting
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


# -- a strategy used again ----------------------------------------------------------------------


def toward(message: Message, context: Context) -> Message:
    """A client that takes a tenth of the way to a model of its own."""
    arrays = message.content["arrays"]
    goal = model_arrays(net(3, seed=10 + int(context.node_config["partition-id"])))
    moved = {
        name: pack_array(0.9 * array.numpy() + np.float32(0.1) * goal[name].numpy())
        for name, array in arrays.items()
    }
    content = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 10})}
    return Message(RecordDict(content), reply_to=message)


def run(strategy, arrays: ArrayRecord, rounds: int = 3) -> list[list[float]]:
    result = strategy.start(LocalGrid(toward, 3), arrays, num_rounds=rounds)
    return [array.numpy().ravel().tolist() for array in result.arrays.values()]


AGAIN = {
    "FedIF": lambda: FedIF(judge(), weighting=Weighting(smooth_update=False), **BASE),
    "momentum": lambda: FedAvg(stages=[FedAvgM(0.9, 0.1)], **BASE),
    "last step": lambda: RobustRule(CentredClipping(), **BASE),
}


@pytest.mark.parametrize("name", AGAIN)
def test_with_another_model_of_the_same_arrays_a_run_is_as_new(name):
    used = AGAIN[name]()
    run(used, model_arrays(net(seed=1)))
    other = model_arrays(net(seed=2))
    assert run(used, other) == run(AGAIN[name](), other)


def test_a_model_that_is_taken_back_is_none_of_an_earlier_run():
    """Where the first round fails, there is no model to go back to."""
    strategy = FedAvg(**BASE)
    run(strategy, model_arrays(net(seed=1)))
    other = model_arrays(net(seed=2))
    nonsense = Clients(dict.fromkeys(range(3), lambda m, _: step_reply(m, float("nan"))))
    strategy.start(LocalGrid(nonsense, 3), other, num_rounds=1)
    assert strategy.model.record is other


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: model_arrays(net(5)), r"'weight' is .* \[3, 4\]; here it is .* \[5, 4\]"),
        (lambda: model_arrays(net().double()), "'weight' is .* float32 .*; here it is .* float64"),
        (lambda: model_arrays(nn.Linear(4, 3, bias=False)), "'bias' is .*; here it is not there"),
    ],
    ids=["shape", "type", "names"],
)
def test_with_a_model_of_other_arrays_a_strategy_is_not_used_again(other, words):
    strategy = FedAvg(**BASE)
    run(strategy, model_arrays(net()))
    with pytest.raises(ConfigError, match=rf"{words}.*make a new strategy"):
        strategy.start(Nobody(Clients(), 3), other(), num_rounds=1)


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
