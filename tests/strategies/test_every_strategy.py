"""What every kind of strategy keeps to: its arguments, its first model, bfloat16, a restart."""

from __future__ import annotations

import inspect
import json
import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from pydantic.fields import FieldInfo
from torch import nn

import fedif_flower.strategies as of
from fedif_flower import (
    PathAttribution,
    RunWriter,
    ShowRounds,
    aggregators,
    local_methods,
    model_arrays,
    stages,
    valuation,
)
from fedif_flower.attacks import ATTACKS
from fedif_flower.constructors import arguments
from fedif_flower.errors import ConfigError, FedIFError
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.strategy import build_strategy
from fedif_flower.runtime.local_grid import FIRST_NODE_ID, LocalGrid
from fedif_flower.server.summary import Scoring
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.server.hostile import Clients, alike, one_more, reply_of
from tests.strategies.lines import BASE, KINDS, STRATEGIES, Movers, built, needed
from tests.strategies.named import config

GENERATOR = torch.Generator().manual_seed(0)
DATA = torch.randn(12, 4, generator=GENERATOR), torch.arange(12) % 3
STEPS = 0.3 * torch.randn(6, 15, generator=GENERATOR)
WITH_A_MODEL = [of.FedIF, of.InfluenceDescent, of.AFedSV, of.ShapFed, of.FLTrust]


def net(classes: int = 3, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, classes, dtype=dtype)


class Nobody(LocalGrid):
    """A grid whose clients must not be asked."""

    def push_messages(self, messages):
        raise AssertionError("a client was asked")


@pytest.mark.parametrize("kind", STRATEGIES)
def test_it_has_few_arguments_and_tells_every_one(kind: Any, caplog):
    parameters = inspect.signature(kind).parameters
    shared = inspect.signature(of.ScreenedStrategy).parameters
    assert len(parameters.keys() - shared.keys()) <= 4
    assert len(shared) <= 13
    assert not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values())
    with caplog.at_level(logging.INFO, "flwr"):  # Simulations in this process silence it.
        built(kind, net(), DATA).summary()
    told = [line.strip("\t├─└> ").split(" = ")[0] for line in caplog.messages]
    assert [name for name in parameters if told.count(name) != 1] == []


def attributed() -> of.FedAvg:
    judged = valuation.Validation(net(), *DATA, device="cpu")
    setup = replace(BASE["setup"], trainable_keys=judged.parameter_names)
    return of.FedAvg(callbacks=[PathAttribution(judged)], **BASE | {"setup": setup})


@pytest.mark.parametrize("kind", [*WITH_A_MODEL, PathAttribution])
def test_a_model_of_other_shapes_is_refused_before_the_first_round(kind):
    strategy = attributed() if kind is PathAttribution else built(kind, net(), DATA)
    words = rf"{kind.__name__} was given a model in which 'weight' has shape \[3, 4\]; .* \[5, 4\]"
    with pytest.raises(ConfigError, match=words):
        strategy.start(Nobody(Clients(), 3), model_arrays(net(5)), num_rounds=1)


@pytest.mark.parametrize("kind", WITH_A_MODEL)
def test_flower_s_first_argument_in_place_of_what_judges_is_named(kind):
    (name, *_) = inspect.signature(kind).parameters
    words = rf"{kind.__name__}: {name} = 0\.5; allowed: a .*fraction_train=0\.5"
    with pytest.raises(ConfigError, match=words):
        kind(0.5)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (Array(np.ones(3, ">f4")), r"'w' has dtype >f4; .*this machine's byte order"),
        (Array(np.array(["a"])), "'w' has dtype <U1; allowed: numbers"),
        (Array(np.array([np.nan], np.float32)), "'w' of the global model has NaN"),
    ],
)
def test_a_model_that_cannot_be_averaged_is_refused_before_anybody_is_waited_for(array, words):
    with pytest.raises(ValueError, match=words):
        of.FedAvg(**BASE).start(Nobody(Clients(), 0), ArrayRecord({"w": array}), num_rounds=1)


def test_it_goes_on_from_where_it_led_and_from_nowhere_else():
    strategy, grid, first = of.FedAvg(**BASE), LocalGrid(alike(one_more), 3), model_arrays(net())
    result = strategy.start(grid, first, num_rounds=1)
    assert strategy.start(grid, result.arrays, num_rounds=1).arrays
    for other in (first, model_arrays(net(5)), model_arrays(net().double())):
        with pytest.raises(ConfigError, match="begun with another model: make a new strategy"):
            strategy.start(Nobody(Clients(), 3), other, num_rounds=1)


@pytest.mark.parametrize("kind", KINDS)
def test_it_takes_a_model_in_bfloat16(kind):
    rows, labels = torch.eye(4).bfloat16(), torch.tensor([0, 1, 2, 0])

    def client(message: Message, context: Context) -> Message:
        own = net(dtype=torch.bfloat16)
        own.load_state_dict(message.content["arrays"].to_torch_state_dict())
        nn.functional.cross_entropy(own(rows), labels).backward()
        torch.optim.SGD(own.parameters(), 0.5).step()
        return reply_of(message, dict(model_arrays(own)), {"num-examples": 10})

    start = net(dtype=torch.bfloat16)
    strategy = built(kind, net(dtype=torch.bfloat16), (rows, labels))
    strategy.start(LocalGrid(client, 3), model_arrays(start), num_rounds=2)
    assert [report.failed for report in strategy.history.rounds] == [False, False]
    # In bfloat16 itself the loss of so small a step may look the same.
    judge = valuation.Validation(start.float(), rows.float(), labels, device="cpu")
    before, led_to = judge.params(), strategy.model.vectors.params
    assert judge.loss(led_to.float()) < judge.loss(before)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((kind, {}) for kind in KINDS),
        (of.FedAvg, {"stages": lambda: [stages.Clip(1.0), stages.FedAvgM(0.5, 0.5)]}),
        (of.FedIF, {"weighting": lambda: of.Weighting(bias_correction=True)}),
        (of.InfluenceDescent, {"descent": lambda: of.DescentSettings(relative=True)}),
        (of.RobustRule, {"rule": aggregators.FedAdp}),
        (of.RobustRule, {"rule": aggregators.CentredClipping}),
    ],
)
def test_two_rounds_and_two_after_a_restart_are_four_to_the_bit(kind, settings):
    whole, half, resumed = (
        built(kind, net(), DATA, fraction_train=0.7, **{k: make() for k, make in settings.items()})
        for _ in range(3)
    )
    grid = LocalGrid(Movers(STEPS.tolist(), [*range(10, 16)]), 6)
    expected = whole.start(grid, model_arrays(net()), num_rounds=4).arrays
    arrays = half.start(grid, model_arrays(net()), num_rounds=2).arrays
    resumed.load_state_dict(half.state_dict())
    resumed.completed_rounds = 2
    found = resumed.start(grid, arrays, num_rounds=2).arrays
    assert all(found[key].data == expected[key].data for key in expected)
    figures = [
        [(c.node.node_id, c.weight, c.weight_score, c.score) for c in report.clients]
        for strategy in (whole, resumed)
        for report in strategy.history.rounds[-2:]
    ]
    assert figures[:2] == figures[2:]


def test_a_step_that_half_precision_rounds_away_is_none():
    """One of four clients adds 0.5 to 1000: the mean, 1000.125, is 1000 in float16."""

    def client(message, context):
        value = 1000.5 if context.node_id == FIRST_NODE_ID else 1000.0
        arrays = ArrayRecord({"weight": Array(np.array([value], np.float16))})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    strategy = of.FedAvg(fraction_evaluate=0.0, setup=of.Setup(device="cpu"))
    start = ArrayRecord({"weight": Array(np.array([1000.0], np.float16))})
    strategy.start(LocalGrid(client, 4), start, num_rounds=1)
    [report] = strategy.history.rounds
    assert report.status == "failed"
    assert "too small to change the model" in report.reason


def test_fedprox_leaves_a_caller_s_config_to_the_next_strategy():
    told = ConfigRecord({"lr": 0.1})
    seen = []

    class Noting(Movers):
        def train(self, message, partition_id):
            seen.append(message.content["config"].get("proximal-mu"))
            return super().train(message, partition_id)

    for kind in (of.FedProx, of.FedAvg):
        grid = LocalGrid(Noting(STEPS.tolist()), 6)
        strategy = built(kind, net(), DATA)
        strategy.start(grid, model_arrays(net()), num_rounds=1, train_config=told)
    assert seen == [0.01] * 6 + [None] * 6


ROOMS = (aggregators, stages, of, local_methods, valuation)
LIMITED = {kind for room in ROOMS for kind in vars(room).values() if isinstance(kind, type)}
LIMITED |= set(ATTACKS.values())


@pytest.mark.parametrize("kind", sorted(LIMITED, key=lambda kind: kind.__name__))
def test_a_setting_beyond_its_range_is_named(kind: Any):
    """Each that a public constructor declares, beside each of its limits, and NaN."""
    given = needed(kind, net(), DATA)
    for name in inspect.signature(kind).parameters.keys() & arguments(kind).keys():
        declared = FieldInfo.from_annotation(arguments(kind)[name][0]).metadata
        beyond = [math.nan] if declared else []
        for sign, outside in {"gt": 0, "ge": -1, "lt": 0, "le": 1}.items():
            limits = [getattr(found, sign) for found in declared if hasattr(found, sign)]
            beyond += [limit + outside for limit in limits]
        for value in beyond:
            with pytest.raises(ConfigError, match=f"^{name} = {value}; allowed: "):
                kind(**given | {name: value})


REFUSED: list[tuple[type, dict[str, object], str]] = [
    (of.Weighting, {"weight_scope": "all"}, "weight_scope = 'all'; allowed: participants, "),
    (of.Weighting, {"num_clients": -6}, "num_clients = -6; allowed: an integer >= 1"),
    (of.Weighting, {"num_clients": 0}, "num_clients = 0; allowed: an integer >= 1"),
    (ShapleyValuation, {"estimator": "guess"}, "estimator = 'guess'; allowed: "),
    (of.Setup, {"max_examples_ratio": 0.5}, "max_examples_ratio = 0.5; allowed: 0 (no bound) or "),
    (of.FedIF, {"fraction_train": 1.5}, "fraction_train = 1.5; allowed: a number >= 0 and <= 1"),
    (of.Setup, {"max_examples_ratio": float("nan")}, "max_examples_ratio = nan; allowed: "),
    (of.RobustRule, {"rule": 0.5}, "rule = 0.5; allowed: a callable, such as Median"),
    (of.FedIF, {"fraction_train": "0.5"}, "fraction_train = '0.5'; allowed: a number >= 0 and <= "),
    (of.FedIF, {"min_train_nodes": 2.5}, "min_train_nodes = 2.5; allowed: an integer >= 0"),
    (of.FedIF, {"weighting": 5}, "weighting = 5; allowed: a Weighting"),
    (of.FedIF, {"setup": {}}, "setup = {}; allowed: a Setup"),
    (of.FedAvg, {"setup": 5}, "setup = 5; allowed: a Setup"),
    (of.FedAvg, {"stages": stages.LossBound()}, "stages = LossBound(tolerance=0.1); allowed: "),
    (of.FedAvg, {"callbacks": ShowRounds()}, "callbacks = ShowRounds; allowed: a list of them"),
    (of.FedAvg, {"callbacks": [ShowRounds]}, "callbacks has the class ShowRounds; allowed: an "),
    (of.FedAvg, {"callbacks": [5]}, "callbacks: 5; allowed: a Callback each"),
    (of.Setup, {"seed": -1}, "seed = -1; allowed: an integer >= 0"),
    (of.Setup, {"node_timeout": "a"}, "node_timeout = 'a'; allowed: seconds, a number >= 0"),
    (of.Setup, {"max_num_examples": 0}, "max_num_examples = 0; allowed: a number >= 1"),
    (of.Setup, {"max_num_examples": math.nan}, "max_num_examples = nan; allowed: a number >= 1"),
    (of.Setup, {"pace": 5}, "pace = '5'; allowed: a Pace"),
    (of.Pace, {"staleness": 0.5}, "staleness = 0.5; allowed: a function that returns a factor"),
    (of.Pace, {"late_rounds": 3, "staleness": lambda s: 3 - s / 3}, "staleness(1) = 2.666"),
    (of.Pace, {"late_rounds": 3, "staleness": lambda s: 2 - s}, "staleness(3) = -1; allowed: "),
    (of.Setup, {"local_method": 5}, "local_method = '5'; allowed: a LocalMethod"),
    (of.Setup, {"intake": None}, "intake = 'None'; allowed: a function"),
    (of.FedAvg, {"setup": of.Setup(device="gpu")}, "device = 'gpu'; allowed: auto, cpu, cuda, "),
    (RunWriter, {"directory": "run", "triggered": 5}, "triggered = '5'; allowed: a Validation"),
    (RunWriter, {"directory": "run", "on_row": 5}, "on_row = '5'; allowed: a function"),
    (ShowRounds, {"every": 1.5}, "every = 1.5; allowed: an integer >= 1"),
]


@pytest.mark.parametrize(("kind", "arguments", "message"), REFUSED)
def test_a_refused_argument_is_named_as_it_is_passed(kind: Any, arguments, message):
    with pytest.raises(FedIFError) as caught:
        kind(**needed(kind, net(), DATA) | arguments)
    assert str(caught.value).startswith(message)


def test_a_strategy_names_what_it_was_called_with():
    class Own(of.FedProx):
        def __init__(self, first, second=2, **base):
            super().__init__(**base)

    own = Own(1, proximal_mu=0.5)
    assert own.settings.items() >= {"first": 1, "second": 2, "proximal_mu": 0.5}.items()
    assert repr(own) == "Own(first=1, proximal_mu=0.5)"
    judge = valuation.Validation(net(), *DATA, device="cpu")
    assert repr(of.FedIF(judge, gamma=0.7, fraction_train=0.5)) == (
        f"FedIF(validation={judge!r}, gamma=0.7, fraction_train=0.5, "
        "stages=[Clip(multiple=2.0), LossBound(tolerance=0.1)])"
    )
    with pytest.raises(TypeError, match="fraction_trian"):
        of.FedIF(judge, fraction_trian=0.5)


@pytest.mark.parametrize("name", ["fedif", "afedsv", "fedsv", "s-fedavg", "leave-one-out"])
def test_a_name_and_its_class_value_alike(tmp_path, name):
    loaded = load_task(config(tmp_path, name))
    named = build_strategy(loaded)
    by_class = type(named)(loaded.validation, setup=named.setup)
    assert vars(named.valuation) == vars(by_class.valuation)


def test_a_name_and_its_class_weigh_alike(tmp_path):
    named = build_strategy(load_task(config(tmp_path, "shapfed")))
    assert named.scoring == of.ShapFed(nn.Linear(2, 2)).scoring


ROUGH = of.Weighting(smooth_update=False)
RAW = of.Weighting(round_normalization=False, bias_correction=True)
# What they leave out is the strategy's own.
POPULATION = of.Weighting(weight_scope="population")
CORRECTED = of.Weighting(bias_correction=True)
UNCORRECTED = of.Weighting(bias_correction=False)
SMOOTH = of.Weighting(smooth_update=True)


class Eager(of.FedIF):
    """A strategy of one's own, which says of its weighting what differs alone."""

    default_weighting = of.Weighting(initial=1.0)


class Corrected(of.FedIF):
    """Another one, whose own weighting is kept where the given one does not say otherwise."""

    default_weighting = of.Weighting(bias_correction=True)


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (of.FedIF, {"gamma": 0.4}, Scoring(0.4, 0.0, False, True)),
        (of.FedIF, {"weighting": ROUGH}, Scoring(1.0, 0.0, False, True)),
        (of.FedIF, {"weighting": RAW}, Scoring(0.3, 0.0, True, False)),
        (of.AFedSV, {"gamma": 0.2}, Scoring(0.2, 0.5, False, True)),
        (of.AFedSV, {"weighting": POPULATION}, Scoring(0.3, 0.5, False, True)),
        (of.AFedSV, {"weighting": of.Weighting(initial=0.0)}, Scoring(0.3, 0.0, False, True)),
        (of.FedSV, {"weighting": POPULATION}, Scoring(1.0, 0.0, False, True)),
        (of.FedSV, {"weighting": SMOOTH}, Scoring(0.3, 0.0, False, True)),
        (of.SFedAvg, {}, Scoring(0.25, 0.0, False, False)),
        (of.ShapFed, {}, Scoring(0.5, 0.0, False, False)),
        (of.ShapFed, {"weighting": CORRECTED}, Scoring(0.5, 0.0, True, False)),
        (of.InfluenceDescent, {"gamma": 0.1}, Scoring(0.1, 1.0, False, False)),
        (Eager, {"weighting": CORRECTED}, Scoring(0.3, 1.0, True, True)),
        (Corrected, {}, Scoring(0.3, 0.0, True, True)),
        (Corrected, {"weighting": POPULATION}, Scoring(0.3, 0.0, True, True)),
        (Corrected, {"weighting": UNCORRECTED}, Scoring(0.3, 0.0, False, True)),
        (of.FedAvg, {}, None),
    ],
)
def test_a_strategy_tells_how_its_scores_come_about(kind, settings, expected):
    scoring = built(kind, net(), DATA, **settings).scoring
    assert scoring == expected
    record = scoring and json.loads(json.dumps(scoring.to_record()))
    assert Scoring.from_record(record) == expected
