"""Strategies by the name that ``strategy = "..."`` takes: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, TypedDict

from flwr.serverapp import strategy as flower
from torch import nn

from fedif_flower.aggregators import (
    RFA,
    AlignIns,
    CentredClipping,
    DeepSight,
    DnC,
    FedAdp,
    Flame,
    FoolsGold,
    Krum,
    Median,
    SignGuard,
    TrimmedMean,
)
from fedif_flower.aggregators.byzfl import PREFIX, ByzFL
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.registry import Registry
from fedif_flower.sections import make
from fedif_flower.settings import Setting
from fedif_flower.stages import Stage
from fedif_flower.strategies.afedsv import AFedSV
from fedif_flower.strategies.auto_bant import AutoBant
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.fedavg import FedAvg
from fedif_flower.strategies.fedif import FedIF
from fedif_flower.strategies.fedprox import FedProx
from fedif_flower.strategies.fedsv import FedSV
from fedif_flower.strategies.flower_rule import FlowerRule
from fedif_flower.strategies.fltrust import FLTrust
from fedif_flower.strategies.influence_descent import InfluenceDescent
from fedif_flower.strategies.leave_one_out import LeaveOneOut
from fedif_flower.strategies.oracle import OracleExclusion
from fedif_flower.strategies.robust_rule import RobustRule
from fedif_flower.strategies.s_fedavg import SFedAvg
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.setup import Setup
from fedif_flower.strategies.shapfed import ShapFed
from fedif_flower.strategies.summary import constructor_signature
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.task import Data, Task
from fedif_flower.valuation import Validation


class BaseArguments(TypedDict):
    """What a run gives every strategy."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_available_nodes: int
    stages: Sequence[Stage]
    callbacks: Sequence[Callback]
    setup: Setup


@dataclass(frozen=True)
class StrategyParts:
    """What a strategy may be built from, beside its own settings."""

    num_clients: int
    clients_per_round: int
    malicious_fraction: float
    seed: int
    training: TrainingConfig
    model: nn.Module
    validation: Validation
    task: Task
    root_data: Data
    is_malicious: Callable[[ClientNode], bool]
    base: BaseArguments

    def offered(self) -> dict[str, Any]:
        """Return its parts by name; ``parts`` is all of them, for a function."""
        return {name: self if name == "parts" else getattr(self, name) for name in OFFERED}


# A constructor can have these beside its settings.
OFFERED = (*(part.name for part in fields(StrategyParts) if part.name != "base"), "parts")


def multi_krum(malicious_fraction: float, clients_per_round: int) -> flower.MultiKrum:
    """Return Flower's Multi-Krum, which selects all but the malicious clients it is told of."""
    malicious = round(malicious_fraction * clients_per_round)
    selected = max(clients_per_round - malicious, 1)
    return flower.MultiKrum(num_malicious_nodes=malicious, num_nodes_to_select=selected)


def bulyan(malicious_fraction: float, clients_per_round: int) -> flower.Bulyan:
    """Return Flower's Bulyan, which is defined for at least 4f + 3 replies only."""
    most = max((clients_per_round - 3) // 4, 0)
    malicious = min(round(malicious_fraction * clients_per_round), most)
    return flower.Bulyan(num_malicious_nodes=malicious)


def trimmed_average(
    beta: Annotated[float, Setting("share cut off at either end", ge=0, lt=0.5)] = 0.2,
) -> flower.FedTrimmedAvg:
    """Return Flower's trimmed mean."""
    return flower.FedTrimmedAvg(beta=beta)


FLOWER_RULES: Mapping[str, Callable[..., flower.FedAvg]] = {
    "multikrum": multi_krum,
    "fedmedian": flower.FedMedian,
    "fedtrimmedavg": trimmed_average,
    "bulyan": bulyan,
}

# No update has a coefficient in them: nothing can be attributed.
WITHOUT_COEFFICIENTS = frozenset(FLOWER_RULES) | {"median", "trimmed-mean", "centred-clipping"}

_BUILT_IN: Mapping[str, Callable[..., Any]] = {
    "fedif": FedIF,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "influence-descent": InfluenceDescent,
    "autobant": AutoBant,
    "afedsv": AFedSV,
    "fedsv": FedSV,
    "s-fedavg": SFedAvg,
    "leave-one-out": LeaveOneOut,
    "shapfed": ShapFed,
    "fltrust": FLTrust,
    "fedadp": FedAdp,
    "rfa": RFA,
    "krum": Krum,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "centred-clipping": CentredClipping,
    "dnc": DnC,
    "flame": Flame,
    "align-ins": AlignIns,
    "deep-sight": DeepSight,
    "fools-gold": FoolsGold,
    "sign-guard": SignGuard,
    "oracle": OracleExclusion,
    **FLOWER_RULES,
}


class _Strategies(Registry):
    """The strategies by name, and ByzFL's rules as ByzFL names them."""

    also = f"{PREFIX}Rule, module:object"

    def __contains__(self, name: object) -> bool:
        return str(name).startswith(PREFIX) or super().__contains__(name)

    def is_own(self, name: str) -> bool:
        return not name.startswith(PREFIX) and super().is_own(name)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if not name.startswith(PREFIX):
            return super().__getitem__(name)
        return partial(ByzFL, name.removeprefix(PREFIX))


STRATEGIES: Registry = _Strategies(
    "strategy",
    _BUILT_IN,
    offered=(*OFFERED, *constructor_signature(ScreenedStrategy).parameters),
    auto={"fedif.gamma": "0.4 on Fashion-MNIST, 0.3 otherwise"},
)


def build_named(
    name: str, parts: StrategyParts, settings: Mapping[str, Any] = MappingProxyType({})
) -> ScreenedStrategy:
    """Return the strategy that a name stands for.

    Classes and functions get those of the parts and settings that they name. A strategy of Flower's
    is wrapped in a :class:`FlowerRule`; a robust rule, which is a callable that is no strategy, in
    a :class:`RobustRule`.

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
    what, maker = f"strategy {name!r}", STRATEGIES[name]
    screens = not isinstance(maker, type) or issubclass(maker, ScreenedStrategy)
    made = make(what, maker, parts.offered(), settings, parts.base if screens else {})
    if isinstance(made, ScreenedStrategy):
        return made
    if isinstance(made, flower.FedAvg):
        return FlowerRule(made, **parts.base)
    if callable(made):
        return RobustRule(made, **parts.base)
    raise ConfigError(
        f"strategy = {name!r} is of type {type(made).__name__}; allowed: a subclass of "
        "fedif_flower.strategies.ScreenedStrategy, a robust rule, or a function that returns one"
    )
