"""Strategies by the name that ``strategy = "..."`` takes: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Self, TypedDict

from flwr.serverapp import strategy as flower
from pydantic import model_validator
from torch import nn

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.settings import RefusedValueError, Settings, setting
from fedif_flower.strategies.afedsv import AFedSV
from fedif_flower.strategies.align_ins import AlignIns
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.centred_clipping import CentredClipping
from fedif_flower.strategies.dnc import DnC
from fedif_flower.strategies.fedadp import FedAdp
from fedif_flower.strategies.fedavg import FedAvg
from fedif_flower.strategies.fedif import FedIF
from fedif_flower.strategies.fedprox import FedProx
from fedif_flower.strategies.fedsv import FedSV
from fedif_flower.strategies.flame import Flame
from fedif_flower.strategies.flower_rule import FlowerRule
from fedif_flower.strategies.fltrust import FLTrust
from fedif_flower.strategies.influence_descent import InfluenceDescent
from fedif_flower.strategies.krum import Distances, Krum
from fedif_flower.strategies.leave_one_out import LeaveOneOut
from fedif_flower.strategies.median import Median
from fedif_flower.strategies.oracle import OracleExclusion
from fedif_flower.strategies.rfa import RFA
from fedif_flower.strategies.s_fedavg import SFedAvg
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.shapfed import ShapFed
from fedif_flower.strategies.trimmed_mean import TrimmedMean
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.task import Data, Task
from fedif_flower.valuation import Validation
from fedif_flower.valuation.ledger import WeightScope
from fedif_flower.valuation.objective import Metric
from fedif_flower.valuation.score_guard import ScoreGuard
from fedif_flower.valuation.shapley import ESTIMATORS


class ShapleyArguments(TypedDict):
    """The settings that every strategy with Shapley values shares."""

    shapley_estimator: str
    shapley_samples: int
    shapley_utility: Metric


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

    @property
    def shapley(self) -> ShapleyArguments:
        """How Shapley values are estimated."""
        return ShapleyArguments(
            shapley_estimator=self.config.shapley_estimator,
            shapley_samples=self.config.shapley_samples,
            shapley_utility=self.config.shapley_utility,
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


Attribution = Literal["off", "trapezoid", "simpson", "gauss2"]
Builder = Callable[[StrategyParts], ScreenedStrategy]


def _fedif(parts: StrategyParts) -> ScreenedStrategy:
    config = parts.config
    return FedIF(
        parts.validation,
        gamma=config.gamma,
        weight_normalization=config.weight_normalization,
        round_normalization=config.round_normalization,
        smooth_update=config.smooth_update,
        bias_correction=config.bias_correction,
        weight_scope=config.weight_scope,
        guard=parts.guard,
        num_clients=parts.num_clients,
        **parts.base,
    )


def _afedsv(parts: StrategyParts) -> ScreenedStrategy:
    config = parts.config
    return AFedSV(
        parts.validation,
        gamma=config.gamma,
        round_normalization=config.round_normalization,
        smooth_update=config.smooth_update,
        bias_correction=config.bias_correction,
        weight_scope=config.weight_scope,
        guard=parts.guard,
        num_clients=parts.num_clients,
        **parts.shapley,
        **parts.base,
    )


def _fltrust(parts: StrategyParts) -> ScreenedStrategy:
    return FLTrust(
        parts.model, parts.root_data, None, task=parts.task, training=parts.training, **parts.base
    )


def _leave_one_out(parts: StrategyParts) -> ScreenedStrategy:
    config = parts.config
    utility = parts.shapley["shapley_utility"]
    return LeaveOneOut(parts.validation, gamma=config.gamma, shapley_utility=utility, **parts.base)


def _influence_descent(parts: StrategyParts) -> ScreenedStrategy:
    config = parts.config
    return InfluenceDescent(
        parts.validation,
        descent_steps=config.descent_steps,
        descent_examples=config.descent_examples,
        gamma=config.gamma,
        **parts.base,
    )


def _krum(parts: StrategyParts) -> ScreenedStrategy:
    return Krum(
        malicious_fraction=parts.config.assumed_malicious_fraction,
        distances=parts.config.krum_distances,
        **parts.base,
    )


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


_FLOWER_RULES: Mapping[str, Builder] = {
    "multikrum": _multikrum,
    "fedmedian": lambda parts: FlowerRule(flower.FedMedian(), **parts.base),
    "fedtrimmedavg": lambda parts: FlowerRule(flower.FedTrimmedAvg(), **parts.base),
    "bulyan": _bulyan,
}

STRATEGIES: Mapping[str, Builder] = {
    "fedif": _fedif,
    "fedavg": lambda parts: FedAvg(**parts.base),
    "fedprox": lambda parts: FedProx(proximal_mu=parts.config.proximal_mu, **parts.base),
    "influence-descent": _influence_descent,
    "afedsv": _afedsv,
    "fedsv": lambda parts: FedSV(parts.validation, **parts.shapley, **parts.base),
    "s-fedavg": lambda parts: SFedAvg(parts.validation, **parts.shapley, **parts.base),
    "leave-one-out": _leave_one_out,
    "shapfed": lambda parts: ShapFed(parts.model, **parts.base),
    "fltrust": _fltrust,
    "fedadp": lambda parts: FedAdp(**parts.base),
    "rfa": lambda parts: RFA(**parts.base),
    "krum": _krum,
    "median": lambda parts: Median(**parts.base),
    "trimmed-mean": lambda parts: TrimmedMean(
        malicious_fraction=parts.config.assumed_malicious_fraction, **parts.base
    ),
    "centred-clipping": lambda parts: CentredClipping(**parts.base),
    "dnc": lambda parts: DnC(
        malicious_fraction=parts.config.assumed_malicious_fraction, **parts.base
    ),
    "flame": lambda parts: Flame(**parts.base),
    "align-ins": lambda parts: AlignIns(**parts.base),
    "oracle": lambda parts: OracleExclusion(parts.is_malicious, **parts.base),
    **_FLOWER_RULES,
}


class StrategyConfig(Settings):
    """How the server draws clients, believes them, and weighs what they send."""

    strategy: str = setting("fedif", "how the server weighs and combines", choices=STRATEGIES)
    fraction_train: float = setting(0.1, "share C of the clients drawn in a round", gt=0, le=1)
    gamma: float = setting(
        0.3,
        "rate of the smooth update",
        gt=0,
        le=1,
        auto="0.4 for FedIF on Fashion-MNIST, 0.3 otherwise",
    )
    weight_normalization: bool = setting(
        True, "FedIF: divide by the norm of the update (off: an ablation)"
    )
    round_normalization: bool = setting(
        True, "FedIF, AFedSV: min-max over the round (off: an ablation)"
    )
    smooth_update: bool = setting(
        True, "FedIF, AFedSV: smooth over rounds with rate gamma (off: an ablation)"
    )
    bias_correction: bool = setting(
        False,
        "FedIF, AFedSV: the weight score of a client of few rounds is the mean of these, not held "
        "down (or up) by where it started",
        is_new=True,
    )
    weight_scope: WeightScope = setting(
        "participants",
        "weights sum to 1 over the round's clients, or AFedSV's unbiased form over all",
    )
    anchored_scores: bool = setting(
        False,
        "FedIF, AFedSV: max(Phi, 0) / max Phi in place of min-max: an update of nothing earns nothing",
        is_new=True,
    )
    least_length: float = setting(
        0.0,
        "FedIF, AFedSV: an update shorter than so many times the round's median counts less, as "
        "much as it is shorter; 0: length does not count",
        ge=0,
        is_new=True,
    )
    harm_memory: int = setting(
        0,
        "FedIF, AFedSV: of so many rounds of a member's own the harmful ones (Phi < 0) are "
        "remembered; with half of them it has no weight; 0: nothing is remembered",
        ge=0,
        is_new=True,
    )
    descent_steps: int = setting(
        8,
        "influence descent: steps down the validation loss that are tried in a round",
        ge=1,
        is_new=True,
    )
    descent_examples: int = setting(
        500,
        "influence descent: how many validation examples a round looks at, drawn anew for each "
        "round in equal shares by class; 0: all",
        ge=0,
        is_new=True,
    )
    server_momentum: float = setting(
        0.0,
        "the model moves along a running mean of the rounds' steps, in which older ones count for "
        "so much; 0: along each round's own",
        ge=0,
        lt=1,
        is_new=True,
    )
    proximal_mu: float = setting(0.01, "FedProx's mu", ge=0)
    update_clipping: float = setting(
        0.0,
        "longer updates are shortened to this many times the usual length, which is the median of "
        "the last lengths of all clients. A contribution strategy also shortens or skips a step "
        "that would lose what was gained on the validation set. 0: no bounds, as in the paper, and "
        "the only value for Flower's own rules",
        ge=0,
        auto="2 for the contribution strategies, else 0",
    )
    krum_distances: Distances = setting(
        "parameters",
        "what Krum measures between: what is trained, or all that is sent, counters of batch "
        "normalisation included (`docs/results.md` says what that does)",
    )
    assumed_malicious_fraction: float = setting(
        0.5,
        "the share of malicious clients that Krum, Multi-Krum, Bulyan, trimmed mean, DnC and "
        "neighbour mixing expect",
        ge=0,
        le=1,
        auto="`malicious-fraction`",
    )
    neighbour_mixing: bool = setting(
        False,
        "each update is first replaced by the mean of its nearest (NNM): all of the round but the "
        "share `assumed-malicious-fraction`; not with Flower's own rules",
        is_new=True,
    )
    shapley_estimator: str = setting(
        "complementary", "for `afedsv`, `fedsv`, `s-fedavg`", choices=ESTIMATORS
    )
    shapley_samples: int = setting(
        50,
        "complementary: samples per stratum; permutation: orders; gtg: most orders; owen: "
        "antithetic pairs",
        ge=1,
    )
    # No data set here has a score of its own.
    shapley_utility: Metric = setting(
        "accuracy", "what a coalition is worth", choices=("accuracy", "loss")
    )
    attribution: Attribution = setting(
        "off",
        "path attribution: what each client contributed to each round's decrease of the validation "
        "loss, in `attribution.csv`, by this quadrature rule (`docs/methods/path-attribution.md`)",
        changes_result=False,
    )
    attribution_per_class: bool = setting(
        False,
        "also split it by the class of the validation examples",
        changes_result=False,
    )
    min_valid_replies: int = setting(1, "with fewer, the round fails and the old model stays", ge=1)
    max_failed_rounds: int = setting(
        3,
        "the run ends when most members gave no usable reply this many times in a row, or when "
        "this many rounds in a row failed although replies were usable",
        ge=1,
        changes_result=False,
    )
    max_paused_turns: int = setting(
        63,
        "a member that errs again and again is not asked for 1, 3, 7 ... of its turns, at most for "
        "this many; 0: nobody is paused",
        ge=0,
        changes_result=False,
    )
    max_num_examples: int = setting(
        0,
        "a client that claims more examples is refused; 0: the size of the server's training "
        "split. No client counts for more than ten times the round's median",
        ge=0,
    )

    @model_validator(mode="after")
    def _can_be_clipped(self) -> Self:
        if self.strategy in _FLOWER_RULES and self.update_clipping:
            raise RefusedValueError("update_clipping", f"0 with strategy {self.strategy!r}")
        if self.strategy in _FLOWER_RULES and self.neighbour_mixing:
            raise RefusedValueError("neighbour_mixing", f"false with strategy {self.strategy!r}")
        return self

    @model_validator(mode="after")
    def _can_be_attributed(self) -> Self:
        if self.strategy in _FLOWER_RULES and self.attribution != "off":
            words = f"'off' with strategy {self.strategy!r}, which gives no update a coefficient"
            raise RefusedValueError("attribution", words)
        return self


# Strategies whose classes bound the lengths of updates by default.
_BOUNDED: Mapping[str, type[ScreenedStrategy]] = {
    "fedif": FedIF,
    "influence-descent": InfluenceDescent,
    "afedsv": AFedSV,
    "fedsv": FedSV,
    "s-fedavg": SFedAvg,
    "leave-one-out": LeaveOneOut,
    "shapfed": ShapFed,
}


def default_clipping(strategy: str) -> float:
    """Return what ``update-clipping = "auto"`` stands for with a strategy, by its name."""
    return _BOUNDED.get(strategy, ScreenedStrategy).default_clipping
