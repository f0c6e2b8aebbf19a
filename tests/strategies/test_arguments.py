"""What strategies are called with: it is checked, told, and means the same by name as by class."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from fedif_flower import AFedSV, FedAvg, FedIF, FedProx, InfluenceDescent, SFedAvg, ShapFed
from fedif_flower.errors import FedIFError
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.strategy import build_strategy
from fedif_flower.strategies import Pace, RobustRule, Setup, Weighting
from fedif_flower.strategies.summary import Scoring
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.strategies.kinds import built
from tests.strategies.lines import threshold_validation
from tests.strategies.named import config

REFUSED: list[tuple[type, dict[str, object], str]] = [
    (Weighting, {"weight_scope": "all"}, "weight_scope = 'all'; allowed: participants, population"),
    (FedIF, {"gamma": 1.5}, "gamma = 1.5; allowed: a number > 0 and <= 1"),
    (ShapleyValuation, {"estimator": "guess"}, "estimator = 'guess'; allowed: "),
    (Pace, {"quorum": 1.5}, "quorum = 1.5; allowed: 0, a share below 1, or a whole number"),
    (FedAvg, {"setup": Setup(max_examples_ratio=0.5)}, "max_examples_ratio"),
    (Setup, {"max_examples_ratio": float("nan")}, "max_examples_ratio = nan; allowed: "),
    (Setup, {"min_valid_replies": 0}, "min_valid_replies = 0; allowed: an integer >= 1"),
    (SFedAvg, {"alpha": 1.0}, "alpha = 1.0; allowed: a number >= 0 and < 1"),
    (FedProx, {"proximal_mu": float("nan")}, "proximal_mu = nan; allowed: a number >= 0"),
    (RobustRule, {"rule": 0.5}, "rule = 0.5; allowed: a callable, such as Median"),
]


@pytest.mark.parametrize(("kind", "arguments", "message"), REFUSED)
def test_a_refused_argument_is_named_as_it_is_passed(kind: Any, arguments, message):
    needed = [threshold_validation()] if kind in (FedIF, ShapleyValuation, SFedAvg) else []
    with pytest.raises(FedIFError) as caught:
        kind(*needed, **arguments)
    assert str(caught.value).startswith(message)


def test_a_strategy_names_what_it_was_called_with():
    class Own(FedProx):
        def __init__(self, first, second=2, **base):
            super().__init__(**base)

    own = Own(1, proximal_mu=0.5)
    assert own.settings.items() >= {"first": 1, "second": 2, "proximal_mu": 0.5}.items()
    assert repr(own) == "Own(first=1, proximal_mu=0.5)"
    assert repr(FedIF(threshold_validation(), gamma=0.7, fraction_train=0.5)) == (
        f"FedIF(validation={threshold_validation()!r}, gamma=0.7, fraction_train=0.5, "
        "stages=[Clip(multiple=2.0), LossBound(tolerance=0.1)])"
    )
    with pytest.raises(TypeError, match="fraction_trian"):
        FedIF(threshold_validation(), fraction_trian=0.5)


@pytest.mark.parametrize("name", ["fedif", "afedsv", "fedsv", "s-fedavg", "leave-one-out"])
def test_a_name_and_its_class_value_alike(tmp_path, name):
    loaded = load_task(config(tmp_path, name))
    named = build_strategy(loaded)
    by_class = type(named)(loaded.validation, setup=named.setup)
    assert vars(named.valuation) == vars(by_class.valuation)


def test_a_name_and_its_class_weigh_alike(tmp_path):
    named = build_strategy(load_task(config(tmp_path, "shapfed")))
    assert named.scoring == ShapFed(nn.Linear(2, 2)).scoring


RAW = Weighting(round_normalization=False, bias_correction=True)


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (FedIF, {"gamma": 0.4}, Scoring(0.4, 0.0, False, True)),
        (FedIF, {"weighting": Weighting(smooth_update=False)}, Scoring(1.0, 0.0, False, True)),
        (FedIF, {"weighting": RAW}, Scoring(0.3, 0.0, True, False)),
        (AFedSV, {"gamma": 0.2}, Scoring(0.2, 0.5, False, True)),
        (SFedAvg, {}, Scoring(0.25, 0.0, False, False)),
        (ShapFed, {}, Scoring(0.5, 0.0, False, False)),
        (InfluenceDescent, {"gamma": 0.1}, Scoring(0.1, 1.0, False, False)),
        (FedAvg, {}, None),
    ],
)
def test_a_strategy_tells_how_its_scores_come_about(kind, settings, expected):
    data = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    scoring = built(kind, nn.Linear(2, 3), data, **settings).scoring
    assert scoring == expected
    record = scoring and json.loads(json.dumps(scoring.to_record()))
    assert Scoring.from_record(record) == expected
