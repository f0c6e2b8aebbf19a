"""``strategy.summary()`` tells every setting of every strategy."""

from __future__ import annotations

import inspect
import logging

import pytest
import torch
from torch import nn

import fedif_flower.strategies as strategies
from fedif_flower.aggregators import Median
from fedif_flower.strategies import RootTraining, Setup
from fedif_flower.strategies.base import ScreenedStrategy
from fedif_flower.valuation import InfluenceValuation
from tests.strategies.lines import threshold_validation

PUBLIC = [getattr(strategies, name) for name in strategies.__all__]
KINDS = [kind for kind in PUBLIC if issubclass(kind, ScreenedStrategy)]


def parts() -> dict[str, object]:
    """What strategies cannot do without, by argument."""
    return {
        "validation": threshold_validation(),
        "model": nn.Linear(2, 3),
        "root": RootTraining(nn.Linear(2, 3), torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)),
        "rule": Median(),
        "is_malicious": lambda _node: False,
    }


def built(kind: type[ScreenedStrategy], **settings: object) -> ScreenedStrategy:
    needed = parts()
    own = {n: needed[n] for n in inspect.signature(kind).parameters if n in needed}
    if kind is strategies.ScoredStrategy:
        own = {"validation": InfluenceValuation(threshold_validation())}
    return kind(**own, setup=Setup(device="cpu"), **settings)


def told(strategy: ScreenedStrategy, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.INFO, "flwr"):  # Simulations in this process silence it.
        strategy.summary()
    return [line.strip("\t├─└> ") for line in caplog.messages]


@pytest.mark.parametrize("kind", KINDS)
def test_every_argument_is_told(kind, caplog):
    names = [line.split(" = ")[0] for line in told(built(kind), caplog)]
    for name in inspect.signature(kind).parameters:
        assert names.count(name) == 1, name


def test_positional_arguments_and_those_of_a_users_own_subclass():
    class Own(strategies.FedProx):
        def __init__(self, first, second=2, **base):
            super().__init__(**base)

    flower = strategies.FedAvg(0.3, 0.4).settings
    assert (flower["fraction_train"], flower["fraction_evaluate"]) == (0.3, 0.4)
    own = Own(1, proximal_mu=0.5)
    assert own.settings.items() >= {"first": 1, "second": 2, "proximal_mu": 0.5}.items()
    assert repr(own) == "Own(first=1, proximal_mu=0.5)"


def test_a_strategy_names_what_it_was_called_with():
    fedif = strategies.FedIF(
        threshold_validation(), fraction_train=0.5, gamma=0.7, setup=Setup(device="cpu")
    )
    validation = repr(threshold_validation())
    assert repr(fedif) == (
        f"FedIF(validation={validation}, gamma=0.7, setup=Setup(device='cpu'), fraction_train=0.5, "
        "stages=[Clip(multiple=2.0), LossBound(tolerance=0.1)])"
    )
    assert repr(strategies.FedSV(threshold_validation())).startswith(
        f"FedSV(validation={validation}"
    )
