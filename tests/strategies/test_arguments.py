"""A class that refuses an argument calls it by the name that the argument has there."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from fedif_flower import RFA, FedAvg, FedIF, FedProx, Krum, SFedAvg
from fedif_flower import strategies as room
from fedif_flower.aggregators import SignGuard
from fedif_flower.errors import FedIFError
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.strategy import build_strategy
from fedif_flower.strategies import (
    DescentSettings,
    Pace,
    RobustRule,
    Setup,
    Weighting,
)
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.strategies.lines import threshold_validation
from tests.strategies.named import config

REFUSED: list[tuple[type, dict[str, object], str]] = [
    (Weighting, {"weight_scope": "all"}, "weight_scope = 'all'; allowed: participants, population"),
    (FedIF, {"gamma": 1.5}, "gamma = 1.5; allowed: a number > 0 and <= 1"),
    (ShapleyValuation, {"utility": "f1"}, "utility = 'f1'; allowed: accuracy, loss, score"),
    (ShapleyValuation, {"estimator": "guess"}, "estimator = 'guess'; allowed: "),
    (DescentSettings, {"steps": 0}, "steps = 0; allowed: an integer >= 1"),
    (Pace, {"quorum": 1.5}, "quorum = 1.5; allowed: 0, a share below 1, or a whole number"),
    (Pace, {"grace": -1.0}, "grace = -1.0; allowed: a number >= 0"),
    (FedAvg, {"setup": Setup(max_examples_ratio=0.5)}, "max_examples_ratio"),
    (Setup, {"max_examples_ratio": float("nan")}, "max_examples_ratio = nan; allowed: "),
    (Setup, {"min_valid_replies": 0}, "min_valid_replies = 0; allowed: an integer >= 1"),
    (SFedAvg, {"alpha": 1.0}, "alpha = 1.0; allowed: a number >= 0 and < 1"),
    (FedProx, {"proximal_mu": float("nan")}, "proximal_mu = nan; allowed: a number >= 0"),
    (Krum, {"distances": "models"}, "distances = 'models'; allowed: parameters, state"),
    (RFA, {"nu": 0.0}, "nu = 0.0; allowed: a number > 0"),
    (SignGuard, {"share": 2.0}, "share = 2.0; allowed: a number > 0 and <= 1"),
    (RobustRule, {"rule": 0.5}, "rule = 0.5; allowed: a callable, such as Median"),
]


@pytest.mark.parametrize(("kind", "arguments", "message"), REFUSED)
def test_a_refused_argument_is_named_as_it_is_passed(kind: Any, arguments, message):
    needed = [threshold_validation()] if kind in (FedIF, ShapleyValuation, SFedAvg) else []
    with pytest.raises(FedIFError) as caught:
        kind(*needed, **arguments)
    assert str(caught.value).startswith(message)


STRATEGIES = [
    kind for name in room.__all__ if issubclass(kind := getattr(room, name), room.ScreenedStrategy)
]


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_strategy_has_few_arguments_and_ancestors(kind: Any):
    parameters = inspect.signature(kind).parameters.values()
    assert len(parameters) <= 16
    assert not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    assert len(kind.__mro__) - 2 <= 7  # Without itself and object; three are Flower's.


def test_flowers_arguments_may_be_given_by_place():
    def mean(records, key):
        raise NotImplementedError

    by_place = (0.5, 0.0, 1, 1, 1, "examples", "model", "settings", mean, mean)
    strategy = FedAvg(*by_place)
    assert (strategy.fraction_train, strategy.arrayrecord_key) == (0.5, "model")
    assert (strategy.train_metrics_aggr_fn, strategy.evaluate_metrics_aggr_fn) == (mean, mean)
    assert FedAvg(evaluate_metrics_aggr_fn=mean).evaluate_metrics_aggr_fn is mean


@pytest.mark.parametrize("name", ["fedif", "afedsv", "fedsv", "s-fedavg", "leave-one-out"])
def test_a_name_and_its_class_value_alike(tmp_path, name):
    loaded = load_task(config(tmp_path, name))
    named = build_strategy(loaded)
    by_class = type(named)(loaded.validation, setup=named.setup)
    assert vars(named.valuation) == vars(by_class.valuation)
