"""Strategies by the name that ``strategy = "..."`` takes: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import nn

from fedif_flower.constructors import constructor_signature
from fedif_flower.errors import require
from fedif_flower.making import make
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.registry import Registry
from fedif_flower.sections import named_by_key
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.rule import Rule
from fedif_flower.server.setup import BaseArguments
from fedif_flower.strategies.robust_rule import RobustRule
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.task import Data, Task
from fedif_flower.valuation import Validation


@dataclass(frozen=True)
class StrategyParts:
    """What a strategy may be built from, beside its own settings."""

    num_clients: int
    clients_per_round: int  # With how few replies a round may close.
    malicious_fraction: float
    seed: int
    training: TrainingConfig
    model: nn.Module
    validation: Validation
    task: Task
    root_data: Data
    is_malicious: Callable[[ClientNode], bool]
    base: BaseArguments


# A constructor can have these beside its settings; ``parts`` is all of them, for a function.
OFFERED = (*(part.name for part in fields(StrategyParts)), "parts")


# Each is imported when it is named.
_BUILT_IN: Mapping[str, str] = {
    "fedif": "strategies:FedIF",
    "fedavg": "strategies:FedAvg",
    "fedprox": "strategies:FedProx",
    "influence-descent": "strategies:InfluenceDescent",
    "afedsv": "strategies:AFedSV",
    "fedsv": "strategies:FedSV",
    "s-fedavg": "strategies:SFedAvg",
    "leave-one-out": "strategies:LeaveOneOut",
    "shapfed": "strategies:ShapFed",
    "fltrust": "strategies:FLTrust",
    "fedadp": "aggregators:FedAdp",
    "rfa": "aggregators:RFA",
    "krum": "aggregators:Krum",
    "multikrum": "aggregators.krum:MultiKrum",
    "median": "aggregators:Median",
    "trimmed-mean": "aggregators:TrimmedMean",
    "centred-clipping": "aggregators:CentredClipping",
    "dnc": "aggregators:DnC",
    "flame": "aggregators:Flame",
    "align-ins": "aggregators:AlignIns",
    "deep-sight": "aggregators:DeepSight",
    "fools-gold": "aggregators:FoolsGold",
    "sign-guard": "aggregators:SignGuard",
}

STRATEGIES = Registry(
    "strategy",
    {name: f"fedif_flower.{where}" for name, where in _BUILT_IN.items()},
    offered=(*OFFERED, *constructor_signature(ScreenedStrategy).parameters),
    auto={"influence-descent.relative": "`true` in a run with a budget, else `false`"},
    makes=(ScreenedStrategy, Rule),
)


def strategy_class(name: str) -> type | None:
    """Return the class that a name stands for: a strategy's or a rule's; ``None``: a function.

    What is not built in is imported.
    """
    maker = STRATEGIES[name]
    function = maker.func if isinstance(maker, partial) else maker
    return function if isinstance(function, type) else None


def gives_coefficients(name: str) -> bool:
    """Tell whether updates have coefficients in a strategy's step: else nothing is attributed.

    Of a function that returns a strategy it is not known before it is called: ``True``.
    """
    kind = strategy_class(name)
    if kind is None:
        return True
    if issubclass(kind, ScreenedStrategy):
        return kind.combines_updates
    return bool(getattr(kind, "gives_weights", False))


def takes_groups(name: str) -> bool:
    """Tell whether a strategy may be given the means of groups for clients.

    Of a function, and of a class that brings a robust rule of its own, it is not known before it is
    called: ``True``.
    """
    kind = strategy_class(name)
    if kind is None or issubclass(kind, RobustRule):
        return True
    if issubclass(kind, ScreenedStrategy):
        return kind.takes_groups
    return not getattr(kind, "knows_clients", False)


def build_named(
    name: str, parts: StrategyParts, settings: Mapping[str, Any] = MappingProxyType({})
) -> ScreenedStrategy:
    """Return the strategy that a name stands for.

    Classes and functions get those of the parts and settings that they name. A robust rule, which
    is a callable that is no strategy, is wrapped in a :class:`RobustRule`.

    Parameters
    ----------
    name : str
        As in ``strategy = "fedif"``.
    parts : StrategyParts
        What it may be built from.
    settings : mapping
        Its own settings, by the names of its constructor's arguments.

    Raises
    ------
    ConfigError
        If it needs something else, or is none of these.
    """
    maker = STRATEGIES[name]
    screens = not isinstance(maker, type) or issubclass(maker, ScreenedStrategy)
    offered = {**vars(parts), "parts": parts}
    base = parts.base if screens else {}
    with named_by_key(STRATEGIES, name):
        instance = make(f"strategy {name!r}", maker, offered, settings, base)
    if isinstance(instance, ScreenedStrategy):
        return instance
    require(callable(instance), "strategy", name, "a strategy, a robust rule, or what returns one")
    return RobustRule(instance, **parts.base)
