"""The run config's settings of strategies: how clients are drawn, waited for and weighed.

Functions at the end turn these settings into stages.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from fedif_flower.constructors import setting_of
from fedif_flower.errors import require
from fedif_flower.intake.pace import Pace
from fedif_flower.registry import Registry
from fedif_flower.sections import SectionedSettings, tuned
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.setup import Setup
from fedif_flower.settings import Scalar, Settings, in_section, setting
from fedif_flower.stages import (
    Bucketing,
    Clip,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    LossBound,
    MaxLength,
    NearestNeighbours,
    ServerOptimizer,
    Stage,
)
from fedif_flower.strategies.registry import (
    STRATEGIES,
    gives_coefficients,
    strategy_class,
    takes_groups,
)
from fedif_flower.valuation import Validation

AttributionRule = Literal["off", "trapezoid", "simpson", "gauss2", "adaptive"]
Rounds = Literal["synchronous", "buffered"]
ALWAYS = 10**9  # As `late_rounds`, so many rounds that a reply counts however late it is.


# A screen's constructor may take `validation`, the server's held-out data, besides its settings.
SCREENS = Registry("screen", {"off": Stage}, offered=("validation",), makes=(Stage,))

SERVER_OPTIMIZERS = Registry(
    "server_optimizer",
    {
        "off": Stage,
        "fedavgm": FedAvgM,
        "fedadam": FedAdam,
        "fedyogi": FedYogi,
        "fedadagrad": FedAdagrad,
    },
    makes=(Stage,),
)


class PaceSettings(Settings, alias_generator=in_section("pace")):
    """How long rounds wait for replies, and whether late replies count."""

    timeout: float = setting(
        3600.0, "seconds a round waits; whoever answered by then counts", gt=0, changes_result=False
    )
    quorum: float = setting_of(Pace, "quorum")
    grace: float = setting_of(Pace, "grace")
    ask_more: float = setting_of(Pace, "ask_more")
    late_rounds: int = setting_of(Pace, "late_rounds")
    rounds: Rounds = setting(
        "synchronous",
        "`buffered`: every member is at work all the time; a step is made of each "
        "`pace.buffer-size` usable replies, however old the model that they began from, or of "
        "fewer once `pace.timeout` is over, and counts as a round (`docs/methods/late-replies.md`)",
    )
    buffer_size: int = setting(
        0, 'with `pace.rounds = "buffered"`: replies in a step; 0: not set', ge=0
    )

    @property
    def is_buffered(self) -> bool:
        """Whether all members train all the time, and each ``buffer_size`` replies make a step."""
        return self.rounds == "buffered"

    @model_validator(mode="after")
    def _can_be_paced(self) -> Self:
        """Raise ConfigError for settings that contradict each other."""
        words = ">= 1 with rounds 'buffered'" if self.is_buffered else "0 without rounds 'buffered'"
        require(self.is_buffered == bool(self.buffer_size), "buffer_size", self.buffer_size, words)
        only = {"quorum": 0, "grace": 0, "ask_more": 1} if self.is_buffered else {}
        for name, value in only.items():
            setting_value = getattr(self, name)
            words = f"{value} with rounds 'buffered', which asks all"
            require(setting_value == value, name, setting_value, words)
        # Pace checks its own arguments too: their errors come now, and not when the run begins.
        self.pace().require_within(self.timeout)
        return self

    def pace(self) -> Pace:
        """Return the Pace that these settings describe."""
        if self.is_buffered:
            return Pace(quorum=self.buffer_size, late_rounds=self.late_rounds or ALWAYS)
        return Pace(self.quorum, self.grace, self.ask_more, self.late_rounds)


class StrategyConfig(SectionedSettings):
    """How the server draws clients, believes them, and weighs what they send."""

    strategy: str = setting("fedif", "how the server weighs and combines", choices=STRATEGIES)
    fraction_train: float = setting(
        0.1,
        'share C of the clients drawn in a round; with `pace.rounds = "buffered"` it says nothing, '
        "since all are at work",
        gt=0,
        le=1,
    )
    server_optimizer: str = setting(
        "off",
        "what moves the model by the rounds' steps; `off`: each round's own step is taken as it is",
        choices=SERVER_OPTIMIZERS,
    )
    update_clipping: float = setting(
        0.0,
        "longer updates are shortened to this many times the usual length, which is the median of "
        "the last lengths of all clients. A strategy that scores updates also takes another step "
        "in place of one that would lose what was gained on the validation set. 0: no bounds, as "
        "in the paper",
        ge=0,
        auto="2 for the strategies that score updates, else 0",
    )
    max_examples_ratio: float = setting_of(Setup, "max_examples_ratio")
    max_update_length: float = setting(
        0.0, "longer updates are shortened to this length; 0: none is", ge=0
    )
    assumed_malicious_fraction: float = setting(
        0.5,
        "the share of malicious clients that Krum, Multi-Krum, trimmed mean, DnC and "
        "neighbour mixing expect",
        ge=0,
        le=1,
        auto="`malicious-fraction`",
    )
    neighbour_mixing: bool = setting(
        False,
        "each update is first replaced by the mean of its nearest (NNM): all of the round but the "
        "share `assumed-malicious-fraction`; with a share of 0, by none, since each would be the "
        "mean of all",
    )
    bucketing: int = setting(
        1,
        "this many clients, drawn by chance, are averaged and weighed as one; 1: no groups. For "
        "robust rules that remember no client",
        ge=1,
    )
    screen: str = setting(
        "off",
        "a stage that looks at a round's updates before they are weighed, such as one that leaves "
        "out those that bring a backdoor (`docs/methods/backdoors.md`)",
        choices=SCREENS,
    )
    attribution: AttributionRule = setting(
        "off",
        "path attribution: what each client contributed to each round's decrease of the validation "
        "loss, in `attribution.csv`, by this quadrature rule (`docs/methods/path-attribution.md`)",
        changes_result=False,
    )
    min_valid_replies: int = setting_of(Setup, "min_valid_replies")
    max_failed_rounds: int = setting_of(Setup, "max_failed_rounds")
    max_paused_turns: int = setting_of(Setup, "max_paused_turns")

    @model_validator(mode="after")
    def _can_be_attributed(self) -> Self:
        """Raise ConfigError if attribution needs coefficients that the steps do not have."""
        if self.attribution == "off":
            return self
        words = f"'off' with strategy {self.strategy!r}, which gives no update a coefficient"
        require(gives_coefficients(self.strategy), "attribution", self.attribution, words)
        words = f"'off' with server-optimizer {self.server_optimizer!r}"
        kind = SERVER_OPTIMIZERS[self.server_optimizer]
        if isinstance(kind, type) and issubclass(kind, ServerOptimizer):
            require(kind.keeps_coefficients, "attribution", self.attribution, words)
        return self

    @model_validator(mode="after")
    def _can_be_grouped(self) -> Self:
        """Raise ConfigError for bucketing with a strategy that cannot weigh groups."""
        words = f"1 with strategy {self.strategy!r}, which weighs or remembers each client"
        fits = self.bucketing == 1 or takes_groups(self.strategy)
        require(fits, "bucketing", self.bucketing, words)
        return self


def default_stages(strategy: str) -> list[Stage]:
    """Return the stages that the strategy of this name has by default."""
    # A name that is no strategy is refused elsewhere, by the check of the key `strategy`.
    kind = strategy_class(strategy) if strategy in STRATEGIES else None
    if kind is not None and issubclass(kind, ScreenedStrategy):
        return kind.default_stages()
    return []


def tuned_settings(strategy: str, dataset: str) -> dict[str, Scalar]:
    """Return, by key, the settings of the strategy of this name that differ on a data set."""
    # A name that is no strategy is refused elsewhere, by the check of the key `strategy`.
    return tuned(STRATEGIES, strategy, dataset) if strategy in STRATEGIES else {}


def default_clipping(strategy: str) -> float:
    """Return the value of ``update-clipping = "auto"`` for the strategy of this name."""
    for stage in default_stages(strategy):
        if isinstance(stage, Clip):
            return stage.multiple
    return 0.0


def configured_bounds(strategy: str, clipping: float) -> list[Stage]:
    """Return the stages that ``update-clipping = clipping`` stands for.

    They are a bound on the lengths of updates and, if the strategy of this name has one by default,
    a bound on the validation loss. With a clipping of 0 there is neither.
    """
    if not clipping:
        return []
    loss_bounds = [stage for stage in default_stages(strategy) if isinstance(stage, LossBound)]
    return [Clip(clipping), *loss_bounds]


def configured_stages(config: StrategyConfig, validation: Validation | None = None) -> list[Stage]:
    """Return the stages that the keys of a run config stand for, in their order.

    Parameters
    ----------
    config : StrategyConfig
        The settings.
    validation : Validation, optional
        Held-out data for a screen that takes some. ``None``: the screen uses the strategy's own.
    """
    malicious_fraction = config.assumed_malicious_fraction
    stages: list[Stage] = []
    if config.max_update_length:
        stages.append(MaxLength(config.max_update_length))
    stages.append(config.build("screen", Stage, {"validation": validation}))
    if config.neighbour_mixing and malicious_fraction:
        stages.append(NearestNeighbours(malicious_fraction))
    if config.bucketing > 1:
        stages.append(Bucketing(config.bucketing))
    stages += configured_bounds(config.strategy, config.update_clipping)
    stages.append(config.build("server_optimizer", Stage, {}))
    # The name "off" makes a plain Stage, which does nothing: it is left out.
    return [stage for stage in stages if type(stage) is not Stage]
