"""Strategies by the name that ``strategy = "..."`` takes: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from flwr.serverapp import strategy as flower
from torch import nn

from fedif_flower.aggregators import (
    RFA,
    AlignIns,
    CentredClipping,
    DnC,
    FedAdp,
    Flame,
    Krum,
    Median,
    TrimmedMean,
)
from fedif_flower.aggregators.byzfl import PREFIX, ByzFL
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.registry import Registry, call_with
from fedif_flower.stages import Stage
from fedif_flower.strategies.afedsv import AFedSV
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.fedavg import FedAvg
from fedif_flower.strategies.fedif import FedIF
from fedif_flower.strategies.fedprox import FedProx
from fedif_flower.strategies.fedsv import FedSV
from fedif_flower.strategies.flower_rule import FlowerRule
from fedif_flower.strategies.fltrust import FLTrust, RootTraining
from fedif_flower.strategies.influence_descent import DescentSettings, InfluenceDescent
from fedif_flower.strategies.leave_one_out import LeaveOneOut
from fedif_flower.strategies.oracle import OracleExclusion
from fedif_flower.strategies.robust_rule import RobustRule, Rule
from fedif_flower.strategies.s_fedavg import SFedAvg
from fedif_flower.strategies.scored import Weighting
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.setup import Setup
from fedif_flower.strategies.shapfed import ShapFed
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.task import Data, Task
from fedif_flower.valuation import InfluenceValuation, Validation
from fedif_flower.valuation.score_guard import ScoreGuard
from fedif_flower.valuation.shapley.valuation import ShapleyValuation

if TYPE_CHECKING:
    from fedif_flower.strategies.config import StrategyConfig


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
    """What a strategy may be built from."""

    config: StrategyConfig
    num_clients: int
    clients_per_round: int
    training: TrainingConfig
    model: nn.Module
    validation: Validation
    task: Task
    root_data: Data
    is_malicious: Callable[[ClientNode], bool]
    base: BaseArguments

    def shapley(self, estimator: str | None = None) -> ShapleyValuation:
        """Return how Shapley values are estimated; ``estimator`` in place of the run's own."""
        return ShapleyValuation(
            self.validation,
            estimator=estimator or self.config.shapley_estimator,
            num_samples=self.config.shapley_samples,
            utility=self.config.shapley_utility,
            seed=self.base["setup"].seed,
        )

    def weighting(self, initial: float) -> Weighting:
        """Return how scores become weights, from those of members never seen on."""
        return Weighting(
            initial=initial,
            round_normalization=self.config.round_normalization,
            smooth_update=self.config.smooth_update,
            bias_correction=self.config.bias_correction,
            weight_scope=self.config.weight_scope,
            num_clients=self.num_clients,
            guard=self.guard,
        )

    @property
    def assumed_malicious(self) -> int:
        """How many malicious clients a robust aggregator is told to expect in a round."""
        return round(self.config.assumed_malicious_fraction * self.clients_per_round)

    @property
    def guard(self) -> ScoreGuard | None:
        """What keeps scores from being farmed; ``None`` where every option is off."""
        config = self.config
        if not (config.anchored_scores or config.least_length or config.harm_memory):
            return None
        return ScoreGuard(
            anchored=config.anchored_scores,
            least_length=config.least_length,
            harm_memory=config.harm_memory,
        )


Builder = Callable[[StrategyParts], ScreenedStrategy]


def _fedif(parts: StrategyParts) -> ScreenedStrategy:
    config = parts.config
    influence = InfluenceValuation(
        parts.validation, weight_normalization=config.weight_normalization
    )
    return FedIF(influence, gamma=config.gamma, weighting=parts.weighting(0.0), **parts.base)


def _afedsv(parts: StrategyParts) -> ScreenedStrategy:
    gamma, weighting = parts.config.gamma, parts.weighting(0.5)
    return AFedSV(parts.shapley(), gamma=gamma, weighting=weighting, **parts.base)


def _fltrust(parts: StrategyParts) -> ScreenedStrategy:
    root = RootTraining(parts.model, parts.root_data, task=parts.task, training=parts.training)
    return FLTrust(root, **parts.base)


def _leave_one_out(parts: StrategyParts) -> ScreenedStrategy:
    return LeaveOneOut(parts.shapley("leave-one-out"), gamma=parts.config.gamma, **parts.base)


def _influence_descent(parts: StrategyParts) -> ScreenedStrategy:
    config = parts.config
    descent = DescentSettings(
        config.descent_steps, config.descent_examples, config.relative_weights
    )
    return InfluenceDescent(parts.validation, descent=descent, gamma=config.gamma, **parts.base)


def _robust(rule: Callable[[StrategyConfig], Rule]) -> Builder:
    """Return what builds a robust rule's strategy; ``rule`` makes one of the settings."""
    return lambda parts: RobustRule(rule(parts.config), **parts.base)


def _multikrum(parts: StrategyParts) -> ScreenedStrategy:
    malicious = parts.assumed_malicious
    selected = max(parts.clients_per_round - malicious, 1)
    inner = flower.MultiKrum(num_malicious_nodes=malicious, num_nodes_to_select=selected)
    return FlowerRule(inner, **parts.base)


def _bulyan(parts: StrategyParts) -> ScreenedStrategy:
    # Bulyan is defined for at least 4f + 3 replies only.
    most = max((parts.clients_per_round - 3) // 4, 0)
    malicious = min(parts.assumed_malicious, most)
    return FlowerRule(flower.Bulyan(num_malicious_nodes=malicious), **parts.base)


FLOWER_RULES: Mapping[str, Builder] = {
    "multikrum": _multikrum,
    "fedmedian": lambda parts: FlowerRule(flower.FedMedian(), **parts.base),
    "fedtrimmedavg": lambda parts: FlowerRule(flower.FedTrimmedAvg(), **parts.base),
    "bulyan": _bulyan,
}

# No update has a coefficient in them: nothing can be attributed.
WITHOUT_COEFFICIENTS = frozenset(FLOWER_RULES) | {"median", "trimmed-mean", "centred-clipping"}

_BUILT_IN: Mapping[str, Builder] = {
    "fedif": _fedif,
    "fedavg": lambda parts: FedAvg(**parts.base),
    "fedprox": lambda parts: FedProx(proximal_mu=parts.config.proximal_mu, **parts.base),
    "influence-descent": _influence_descent,
    "afedsv": _afedsv,
    "fedsv": lambda parts: FedSV(parts.shapley(), **parts.base),
    "s-fedavg": lambda parts: SFedAvg(parts.shapley(), **parts.base),
    "leave-one-out": _leave_one_out,
    "shapfed": lambda parts: ShapFed(parts.model, **parts.base),
    "fltrust": _fltrust,
    "fedadp": _robust(lambda _: FedAdp()),
    "rfa": _robust(lambda _: RFA()),
    "krum": _robust(lambda c: Krum(c.assumed_malicious_fraction, distances=c.krum_distances)),
    "median": _robust(lambda _: Median()),
    "trimmed-mean": _robust(lambda c: TrimmedMean(c.assumed_malicious_fraction)),
    "centred-clipping": _robust(lambda _: CentredClipping()),
    "dnc": _robust(lambda c: DnC(c.assumed_malicious_fraction)),
    "flame": _robust(lambda _: Flame()),
    "align-ins": _robust(lambda _: AlignIns()),
    "oracle": lambda parts: OracleExclusion(parts.is_malicious, **parts.base),
    **FLOWER_RULES,
}


# What a strategy of a package's own may name in its constructor, beside BaseArguments.
_OFFERED = ("validation", "model", "task", "training", "num_clients")


def own_strategy(name: str, found: Any) -> Builder:
    """Return what builds a strategy of a package's own.

    A :class:`ScreenedStrategy` gets the run's settings, and those of ``validation``, ``model``,
    ``task``, ``training`` and ``num_clients`` that its constructor names. A strategy of Flower's
    is wrapped in a :class:`FlowerRule`. A class whose instances are called is a robust rule: it
    gets ``malicious_fraction`` if it names it. A function gets the StrategyParts.
    """

    def build(parts: StrategyParts) -> ScreenedStrategy:
        made: object
        if isinstance(found, type) and issubclass(found, ScreenedStrategy):
            offered = {key: getattr(parts, key) for key in _OFFERED}
            made = call_with(f"strategy {name!r}", found, offered, parts.base)
        elif isinstance(found, type) and issubclass(found, flower.FedAvg):
            made = FlowerRule(found(), **parts.base)
        elif isinstance(found, type) and any("__call__" in vars(kind) for kind in found.__mro__):
            share = {"malicious_fraction": parts.config.assumed_malicious_fraction}
            rule: Rule = call_with(f"strategy {name!r}", found, share)
            made = RobustRule(rule, **parts.base)
        else:
            made = found(parts) if callable(found) else found
        if not isinstance(made, ScreenedStrategy):
            raise ConfigError(
                f"strategy = {name!r} is of type {type(made).__name__}; allowed: a subclass of "
                "fedif_flower.strategies.ScreenedStrategy, or a function (parts) that returns one"
            )
        return made

    return build


class _Strategies(Registry[Builder]):
    """The strategies by name, and ByzFL's rules as ByzFL names them."""

    also = f"{PREFIX}Rule, module:object"

    def __contains__(self, name: object) -> bool:
        return str(name).startswith(PREFIX) or super().__contains__(name)

    def is_own(self, name: str) -> bool:
        return not name.startswith(PREFIX) and super().is_own(name)

    def __getitem__(self, name: str) -> Builder:
        if not name.startswith(PREFIX):
            return super().__getitem__(name)
        rule = name.removeprefix(PREFIX)
        return _robust(lambda c: ByzFL(rule, c.assumed_malicious_fraction))


STRATEGIES: Registry[Builder] = _Strategies("strategy", _BUILT_IN, own_strategy)
