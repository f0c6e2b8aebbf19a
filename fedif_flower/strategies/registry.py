"""Strategies by the name that ``strategy = "..."`` takes: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, cast

from flwr.serverapp import strategy as flower
from torch import Tensor, nn

from fedif_flower.strategies.afedsv import AFedSV
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.fedadp import FedAdp
from fedif_flower.strategies.fedavg import FedAvg
from fedif_flower.strategies.fedif import FedIF
from fedif_flower.strategies.fedprox import FedProx
from fedif_flower.strategies.fedsv import FedSV
from fedif_flower.strategies.flower_rule import FlowerRule
from fedif_flower.strategies.fltrust import FLTrust
from fedif_flower.strategies.krum import Distances, Krum
from fedif_flower.strategies.leave_one_out import LeaveOneOut
from fedif_flower.strategies.rfa import RFA
from fedif_flower.strategies.s_fedavg import SFedAvg
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.shapfed import ShapFed
from fedif_flower.valuation import Validation
from fedif_flower.valuation.objective import Metric

if TYPE_CHECKING:
    from fedif_flower.run.config import RunConfig


class ShapleyArguments(TypedDict):
    """The settings that every strategy with Shapley values shares."""

    shapley_estimator: str
    shapley_samples: int
    shapley_utility: Metric


@dataclass(frozen=True)
class StrategyParts:
    """What a strategy may be built from."""

    config: RunConfig
    model: nn.Module
    validation: Validation
    root_data: tuple[Tensor, Tensor]
    base: BaseArguments

    @property
    def shapley(self) -> ShapleyArguments:
        """How Shapley values are estimated."""
        return ShapleyArguments(
            shapley_estimator=self.config.shapley_estimator,
            shapley_samples=self.config.shapley_samples,
            shapley_utility=cast(Metric, self.config.shapley_utility),
        )

    @property
    def assumed_malicious(self) -> int:
        """How many of a round's clients a robust rule is told to expect malicious."""
        return round(self.config.assumed_malicious_fraction * self.config.clients_per_round)


Builder = Callable[[StrategyParts], ScreenedStrategy]


def _fedif(parts: StrategyParts) -> ScreenedStrategy:
    config = parts.config
    return FedIF(
        parts.validation,
        gamma=config.gamma,
        weight_normalization=config.weight_normalization,
        round_normalization=config.round_normalization,
        smooth_update=config.smooth_update,
        weight_scope=config.weight_scope,
        num_clients=config.num_clients,
        **parts.base,
    )


def _afedsv(parts: StrategyParts) -> ScreenedStrategy:
    config = parts.config
    return AFedSV(
        parts.validation,
        gamma=config.gamma,
        round_normalization=config.round_normalization,
        smooth_update=config.smooth_update,
        weight_scope=config.weight_scope,
        num_clients=config.num_clients,
        **parts.shapley,
        **parts.base,
    )


def _fltrust(parts: StrategyParts) -> ScreenedStrategy:
    inputs, labels = parts.root_data
    return FLTrust(parts.model, inputs, labels, training=parts.config.training, **parts.base)


def _leave_one_out(parts: StrategyParts) -> ScreenedStrategy:
    config = parts.config
    utility = parts.shapley["shapley_utility"]
    return LeaveOneOut(parts.validation, gamma=config.gamma, shapley_utility=utility, **parts.base)


def _krum(parts: StrategyParts) -> ScreenedStrategy:
    return Krum(
        malicious_fraction=parts.config.assumed_malicious_fraction,
        distances=cast(Distances, parts.config.krum_distances),
        **parts.base,
    )


def _multikrum(parts: StrategyParts) -> ScreenedStrategy:
    malicious = parts.assumed_malicious
    selected = max(parts.config.clients_per_round - malicious, 1)
    inner = flower.MultiKrum(num_malicious_nodes=malicious, num_nodes_to_select=selected)
    return FlowerRule(inner, **parts.base)


def _bulyan(parts: StrategyParts) -> ScreenedStrategy:
    # Bulyan is defined for at least 4f + 3 replies only.
    most = max((parts.config.clients_per_round - 3) // 4, 0)
    malicious = min(parts.assumed_malicious, most)
    return FlowerRule(flower.Bulyan(num_malicious_nodes=malicious), **parts.base)


STRATEGIES: Mapping[str, Builder] = {
    "fedif": _fedif,
    "fedavg": lambda parts: FedAvg(**parts.base),
    "fedprox": lambda parts: FedProx(proximal_mu=parts.config.proximal_mu, **parts.base),
    "afedsv": _afedsv,
    "fedsv": lambda parts: FedSV(parts.validation, **parts.shapley, **parts.base),
    "s-fedavg": lambda parts: SFedAvg(parts.validation, **parts.shapley, **parts.base),
    "leave-one-out": _leave_one_out,
    "shapfed": lambda parts: ShapFed(parts.model, **parts.base),
    "fltrust": _fltrust,
    "fedadp": lambda parts: FedAdp(**parts.base),
    "rfa": lambda parts: RFA(**parts.base),
    "krum": _krum,
    "multikrum": _multikrum,
    "fedmedian": lambda parts: FlowerRule(flower.FedMedian(), **parts.base),
    "fedtrimmedavg": lambda parts: FlowerRule(flower.FedTrimmedAvg(), **parts.base),
    "bulyan": _bulyan,
}
