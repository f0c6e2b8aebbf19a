"""The strategies by the names that the run config's key ``strategy`` takes."""

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
    """The objects of a run that are offered to a strategy's constructor, besides its settings."""

    num_clients: int
    clients_per_round: int  # The smallest number of replies with which a round may close.
    malicious_fraction: float
    seed: int
    training: TrainingConfig
    model: nn.Module
    validation: Validation
    task: Task
    root_data: Data
    is_malicious: Callable[[ClientNode], bool]
    base: BaseArguments  # Stages, callbacks, setup and Flower's arguments.


# The names that a constructor's parameter may have to get that part. ``parts`` is the whole
# StrategyParts, for a function that builds a strategy.
OFFERED = (*(part.name for part in fields(StrategyParts)), "parts")


# The module is imported only if its name is used.
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
    """Return the class of a strategy or rule that a name stands for; ``None`` for a function.

    It imports the module of the class.
    """
    maker = STRATEGIES[name]
    function = maker.func if isinstance(maker, partial) else maker
    return function if isinstance(function, type) else None


def gives_coefficients(name: str) -> bool:
    """Tell whether a strategy's step is a sum of updates times coefficients, as attribution needs.

    For a function that returns a strategy this is not known before it is called: ``True``.
    """
    kind = strategy_class(name)
    if kind is None:
        return True
    if issubclass(kind, ScreenedStrategy):
        return kind.combines_updates
    return bool(getattr(kind, "gives_weights", False))


def takes_groups(name: str) -> bool:
    """Tell whether a strategy can weigh the means of groups in place of single clients.

    For a function, and for a subclass of RobustRule, which makes its rule itself, this is not known
    before it is called: ``True``.
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
    """Build the strategy that a name stands for.

    The class or function behind the name is called with the parts and settings that its parameters
    name. If the result is a robust rule (any callable that is no strategy), it is wrapped in a
    :class:`RobustRule`.

    Parameters
    ----------
    name : str
        The name, as in ``strategy = "fedif"``.
    parts : StrategyParts
        The parts that are offered.
    settings : mapping
        The strategy's own settings, by the names of its constructor's arguments.

    Raises
    ------
    ConfigError
        If the constructor needs an argument that is not offered, or if the result is neither a
        strategy nor a rule.
    """
    maker = STRATEGIES[name]
    # A rule's constructor does not take the base's arguments: RobustRule gets them below.
    screens = not isinstance(maker, type) or issubclass(maker, ScreenedStrategy)
    offered = {**vars(parts), "parts": parts}
    base = parts.base if screens else {}
    with named_by_key(STRATEGIES, name):
        instance = make(f"strategy {name!r}", maker, offered, settings, base)
    if isinstance(instance, ScreenedStrategy):
        return instance
    require(callable(instance), "strategy", name, "a strategy, a robust rule, or what returns one")
    return RobustRule(instance, **parts.base)
