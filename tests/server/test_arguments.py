"""Arguments of a strategy and of its ``start`` are refused by name before anything begins."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
from flwr.app import ConfigRecord

from fedif_flower import FedAvg, FedIF, PathAttribution, ScoredStrategy
from fedif_flower.errors import ConfigError
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.run import Callback
from fedif_flower.server.setup import Setup
from fedif_flower.stages import LossBound
from tests.server.hostile import alike, one_more
from tests.strategies.lines import BASE, point, validation


class Counting(Callback):
    def __init__(self):
        self.starts = 0
        self.ends = 0

    def on_start(self, strategy):
        self.starts += 1

    def on_end(self):
        self.ends += 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grid", None),
        ("grid", "localhost:9093"),
        ("num_rounds", -3),
        ("num_rounds", 2.5),
        ("num_rounds", "3"),  # Callbacks were told of a start, and of no end.
        ("timeout", -1.0),  # No reply was ever waited for: every round failed.
        ("timeout", math.nan),
        ("timeout", "60"),
        ("train_config", {"lr": 0.1}),
        ("evaluate_config", {"lr": 0.1}),  # Left out in silence where no client evaluates.
        ("evaluate_fn", 5),
    ],
)
def test_an_argument_of_another_kind_is_named_before_anything_begins(name, value):
    counting = Counting()
    strategy = FedAvg(callbacks=[counting], **BASE)
    arguments = {"grid": LocalGrid(alike(one_more), 3), "num_rounds": 1, name: value}
    with pytest.raises(ConfigError, match=f"^{name} = "):
        strategy.start(initial_arrays=model_arrays(point(1)), **arguments)
    assert (counting.starts, counting.ends) == (0, 0)


def test_a_model_in_the_place_of_another_argument_is_named_and_not_printed():
    arrays = model_arrays(point(1))
    grid = LocalGrid(alike(one_more), 3)
    with pytest.raises(ConfigError, match=r"^grid = ArrayRecord; allowed: a Grid"):
        FedAvg(**BASE).start(arrays, grid)
    with pytest.raises(ConfigError, match=r"^train_config = ArrayRecord; allowed: a ConfigRecord"):
        FedAvg(**BASE).start(grid, arrays, train_config=arrays)
    with pytest.raises(ConfigError, match=r"^fraction_train = .{297}\.\.\.; allowed: a number"):
        FedAvg(fraction_train=["a long one"] * 1000)


def test_arguments_that_are_left_out_or_fit_are_taken():
    counting = Counting()
    strategy = FedAvg(callbacks=[counting], **BASE)
    result = strategy.start(
        LocalGrid(alike(one_more), 3),
        model_arrays(point(1)),
        num_rounds=1,
        timeout=None,
        train_config=ConfigRecord({"lr": 0.1}),
        evaluate_fn=lambda server_round, arrays: None,
    )
    assert result.arrays["weight"].numpy().item() == 1.0
    assert (counting.starts, counting.ends) == (1, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("arrayrecord_key", 5),
        ("arrayrecord_key", ""),
        ("configrecord_key", "arrays"),  # The model would not be sent.
        ("weighted_by_key", ["num-examples"]),
        ("train_metrics_aggr_fn", 5),  # Said after the first round, which was lost.
        ("train_metrics_aggr_fn", {}),
        ("evaluate_metrics_aggr_fn", "mean"),
    ],
)
def test_an_argument_of_a_strategy_is_named_when_it_is_made(name, value):
    with pytest.raises(ConfigError, match=f"^{name} = "):
        FedAvg(**{**BASE, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trainable_keys", "weight"),  # Six names of one letter.
        ("trainable_keys", 5),
        ("trainable_keys", [5]),
        ("tied_keys", ["weight"]),
        ("names", "weight"),
        ("max_num_examples", "many"),
        ("max_num_examples", math.nan),
    ],
)
def test_a_setting_of_another_kind_is_named(name, value):
    with pytest.raises(ConfigError, match=f"^{name} = "):
        FedAvg(**{**BASE, "setup": Setup(**{name: value})})


class WithoutValidation:
    """A valuation, as own-parts.md has them, but for one attribute."""

    parameter_names = ("weight",)
    tied_names: ClassVar[dict[str, str]] = {}

    def prepare(self, params, buffers):
        raise NotImplementedError

    def score(self, updates):
        raise NotImplementedError


@pytest.mark.parametrize("kind", [ScoredStrategy, FedIF])
def test_a_valuation_that_lacks_something_is_told_what(kind):
    words = (
        f"{kind.__name__}: validation = .*WithoutValidation.*, which lacks validation; allowed: "
    )
    with pytest.raises(ConfigError, match=f"^{words}a Valuation$"):
        kind(WithoutValidation(), **BASE)
    whole = WithoutValidation()
    whole.validation = None
    assert ScoredStrategy(whole, **BASE).validation is None


class WithoutNames:
    """A valuation without data, which does not say what the model's parameters are."""

    validation = None

    def prepare(self, params, buffers):
        raise NotImplementedError

    def score(self, updates):
        raise NotImplementedError


def test_a_valuation_that_does_not_name_the_parameters_is_told_so():
    words = "^WithoutNames has no parameter_names; allowed: parameter_names, a list, and tied_names"
    with pytest.raises(ConfigError, match=words):
        ScoredStrategy(WithoutNames(), **BASE)
    setup = Setup(device="cpu", trainable_keys=["weight"], tied_keys={})
    assert ScoredStrategy(WithoutNames(), setup=setup).validation is None


class WithoutModel(WithoutNames):
    """Names the parameters of a model that it lacks."""

    asked = 0

    @property
    def parameter_names(self):
        self.asked += 1
        return list(self.model.state_dict())


def test_a_valuation_whose_names_fail_is_told_why():
    valuation = WithoutModel()
    with pytest.raises(ConfigError, match=r"^WithoutModel has no parameter_names") as raised:
        ScoredStrategy(valuation, **BASE)
    assert "no attribute 'model'" in str(raised.value.__cause__)
    assert valuation.asked == 1


def test_a_bound_or_an_attribution_of_another_kind_is_named():
    """Each round would fail, or the first one that is attributed."""
    with pytest.raises(ConfigError, match=r"^validation = 5; allowed: a Validation"):
        LossBound(validation=5)
    with pytest.raises(ConfigError, match=r"^bounds = 5; allowed: CreditBounds"):
        PathAttribution(validation(), bounds=5)
    with pytest.raises(ConfigError, match=r"^on_attribution = 5; allowed: a function"):
        PathAttribution(validation(), on_attribution=5)
