"""Attacks by the name that ``attack = "..."`` takes: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

from pydantic import model_validator

from fedif_flower.attacks.adversarial import AdversarialSamples
from fedif_flower.attacks.alie import Alie
from fedif_flower.attacks.assignment import malicious_partitions, poison_ratio
from fedif_flower.attacks.behaviour import Behaviour
from fedif_flower.attacks.borrowed_steps import (
    AlternatingStep,
    BorrowedStep,
    NoisyStep,
    OlderStep,
    SharedNoise,
    UndoneStep,
)
from fedif_flower.attacks.distributed_trigger import DistributedTrigger
from fedif_flower.attacks.fang import Fang
from fedif_flower.attacks.free_riders import RepeatStep, ReturnModel, ReturnWithNoise
from fedif_flower.attacks.gradient_noise import GradientNoise
from fedif_flower.attacks.harm_and_repair import HarmAndRepair, HarmForRepair
from fedif_flower.attacks.hidden_backdoor import HiddenBackdoor
from fedif_flower.attacks.ipm import InnerProductManipulation
from fedif_flower.attacks.label_noise import LabelNoise
from fedif_flower.attacks.mimic import Mimic
from fedif_flower.attacks.min_max import MinMax
from fedif_flower.attacks.min_sum import MinSum
from fedif_flower.attacks.model_replacement import ModelReplacement
from fedif_flower.attacks.opposed import OpposedSteps, OpposedUpdates
from fedif_flower.attacks.pixel_trigger import PixelTrigger
from fedif_flower.attacks.random_update import RandomUpdate
from fedif_flower.attacks.scaling import HonestScaling, Scaling
from fedif_flower.attacks.semantic_backdoor import SemanticBackdoor
from fedif_flower.attacks.sign_flip import SignFlip
from fedif_flower.attacks.sybils import Sybils
from fedif_flower.errors import ConfigError
from fedif_flower.registry import Registry, call_with
from fedif_flower.settings import RefusedValueError, Settings, setting
from fedif_flower.tasks.task import Task

AttackFactory = Callable[["AttackConfig", float], Behaviour]
"""Builds the behaviour from the config and the client's own poison ratio."""

_BUILT_IN: Mapping[str, AttackFactory] = MappingProxyType(
    {
        "none": lambda _config, _ratio: Behaviour(),
        "label-noise": lambda _config, ratio: LabelNoise(ratio),
        "gradient-noise": lambda config, _ratio: GradientNoise(config.gradient_noise_std),
        "adversarial": lambda config, ratio: AdversarialSamples(
            ratio,
            epsilon=config.pgd_epsilon,
            step_size=config.pgd_step_size,
            steps=config.pgd_steps,
        ),
        "sign-flip": lambda config, _ratio: SignFlip(config.strength(1)),
        "random-update": lambda config, _ratio: RandomUpdate(config.strength(1)),
        "free-rider": lambda _config, _ratio: ReturnModel(),
        "free-rider-noise": lambda config, _ratio: ReturnWithNoise(config.strength(1)),
        "free-rider-step": lambda config, _ratio: RepeatStep(config.strength(1)),
        "scaling": lambda config, ratio: Scaling(ratio, config.strength(10)),
        "honest-scaling": lambda config, _ratio: HonestScaling(config.strength(10)),
        "pixel-trigger": lambda config, ratio: PixelTrigger(ratio, config.attack_target),
        "distributed-trigger": lambda config, ratio: DistributedTrigger(
            ratio, config.attack_target
        ),
        "semantic-backdoor": lambda config, _ratio: SemanticBackdoor(config.attack_target),
        "hidden-backdoor": lambda config, ratio: HiddenBackdoor(ratio, config.attack_target),
        "model-replacement": lambda config, ratio: ModelReplacement(
            ratio, config.attack_target, config.strength(10)
        ),
        "alie": lambda config, _ratio: Alie(
            config.malicious_fraction, config.attack_strength or None
        ),
        "ipm": lambda config, _ratio: InnerProductManipulation(config.strength(0.5)),
        "min-max": lambda _config, _ratio: MinMax(),
        "min-sum": lambda _config, _ratio: MinSum(),
        "fang": lambda config, _ratio: Fang(config.strength(3)),
        "mimic": lambda _config, _ratio: Mimic(),
        "sybils": lambda config, _ratio: Sybils(config.attack_strength),
        "borrowed-step": lambda config, _ratio: BorrowedStep(config.strength(2)),
        "alternating-step": lambda config, _ratio: AlternatingStep(config.strength(4)),
        "noisy-step": lambda config, _ratio: NoisyStep(config.strength(1)),
        "older-step": lambda config, _ratio: OlderStep(config.strength(2)),
        "shared-noise": lambda config, _ratio: SharedNoise(config.strength(1)),
        "undone-step": lambda config, _ratio: UndoneStep(config.strength(3)),
        "harm-and-repair": lambda config, _ratio: HarmAndRepair(config.strength(4)),
        "harm-for-repair": lambda config, _ratio: HarmForRepair(config.strength(4)),
        "opposed-updates": lambda config, _ratio: OpposedUpdates(config.strength(10)),
        "opposed-steps": lambda config, _ratio: OpposedSteps(config.strength(10)),
    }
)


def _own(name: str, found: Any) -> AttackFactory:
    """Return what builds an attack of a package's own: a Behaviour, or a function like those above.

    A class gets ``ratio`` and ``config`` where its constructor names them.
    """

    def build(config: AttackConfig, ratio: float) -> Behaviour:
        offered = {"ratio": ratio, "config": config}
        is_class = isinstance(found, type)
        made = call_with(f"attack {name!r}", found, offered) if is_class else found(config, ratio)
        if not isinstance(made, Behaviour):
            raise ConfigError(
                f"attack = {name!r} is of type {type(made).__name__}; allowed: a subclass of "
                "fedif_flower.attacks.Behaviour, or a function (config, ratio) that returns one"
            )
        return made

    if not callable(found):
        raise ConfigError(f"attack = {name!r} is no class or function: {type(found).__name__}")
    return build


ATTACKS: Registry[AttackFactory] = Registry("attack", _BUILT_IN, _own)


class AttackConfig(Settings):
    """How malicious clients behave, and how many there are."""

    attack: str = setting("none", "what malicious clients do", choices=ATTACKS)
    malicious_fraction: float = setting(
        0.5, "share of the clients that are malicious (the paper's n_level)", ge=0, le=1
    )
    poison_ratio_min: float = setting(
        0.7, "least share of a malicious client's samples that are poisoned (n_ratio)", ge=0, le=1
    )
    poison_ratio_max: float = setting(
        0.8, "largest such share; each malicious client draws its own between the two", ge=0, le=1
    )
    gradient_noise_std: float = setting(
        0.1, "standard deviation of the noise on the returned parameters", ge=0
    )
    pgd_epsilon: float = setting(
        0.03, "radius of adversarial samples, in units of the pixel range", ge=0, le=1
    )
    pgd_step_size: float = setting(
        0.01, "step of adversarial samples, in units of the pixel range", gt=0, le=1
    )
    pgd_steps: int = setting(20, "gradient steps per adversarial sample", ge=1)
    attack_strength: float = setting(
        0.0,
        "how strong other attacks are: the factor of each (docs/methods/attacks.md); 0: its own "
        "default, or what its paper computes",
        ge=0,
        is_new=True,
    )
    attack_target: int = setting(
        0, "the class that a backdoor is to make the model answer with", ge=0, is_new=True
    )
    attack_first_round: int = setting(
        1, "malicious clients are honest before this round", ge=1, is_new=True
    )
    attack_period: int = setting(
        0,
        "from then on they attack for so many rounds, are honest for as many, and so on; 0: they "
        "attack until the end",
        ge=0,
        is_new=True,
    )

    def strength(self, default: float) -> float:
        """Return ``attack_strength``, or an attack's own default where it is 0."""
        return self.attack_strength or default

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.poison_ratio_min > self.poison_ratio_max:
            raise RefusedValueError(
                "poison_ratio_min", f"<= poison_ratio_max = {self.poison_ratio_max}"
            )
        return self


def build_behaviour(config: AttackConfig, *, partition_id: int, seed: int) -> Behaviour:
    """Return what a *malicious* client does.

    Parameters
    ----------
    config : AttackConfig
        Which attack, and its settings.
    partition_id : int
        The client, >= 0; its poison ratio depends on it and the seed alone.
    seed : int
        The run's seed.
    """
    ratio = poison_ratio(config.poison_ratio_min, config.poison_ratio_max, seed, partition_id)
    return ATTACKS[config.attack](config, ratio)


def behaviour_of(
    config: AttackConfig, *, partition_id: int, num_clients: int, seed: int
) -> Behaviour:
    """Return what a client does: honest, unless it is one of the malicious partitions.

    Parameters
    ----------
    config : AttackConfig
        Which attack, its settings, and the share of malicious clients.
    partition_id : int
        The client, 0 <= partition_id < num_clients.
    num_clients : int
        K >= 1.
    seed : int
        The run's seed.
    """
    if partition_id in malicious_partitions(num_clients, config.malicious_fraction, seed):
        return build_behaviour(config, partition_id=partition_id, seed=seed)
    return Behaviour()


def require_fit(acting: Behaviour, task: Task, attack: str) -> None:
    """Raise ConfigError if an attack needs what a task does not have."""
    if missing := acting.misfit(task):
        raise ConfigError(f"attack {attack!r} needs {missing}, which task {task.name!r} lacks")
