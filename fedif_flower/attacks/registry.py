"""Attacks by the name that ``attack = "..."`` takes: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar, Self

from pydantic import model_validator

from fedif_flower.attacks.adversarial import AdversarialSamples
from fedif_flower.attacks.alie import Alie
from fedif_flower.attacks.assignment import malicious_partitions, poison_ratio
from fedif_flower.attacks.behaviour import Behaviour, Colluder
from fedif_flower.attacks.descending_backdoor import DescendingBackdoor
from fedif_flower.attacks.distributed_trigger import DistributedTrigger
from fedif_flower.attacks.edge_case import EdgeCase
from fedif_flower.attacks.fang import Fang
from fedif_flower.attacks.free_riders import RepeatStep, ReturnModel, ReturnWithNoise
from fedif_flower.attacks.gradient_noise import GradientNoise
from fedif_flower.attacks.hidden_backdoor import HiddenBackdoor
from fedif_flower.attacks.ipm import InnerProductManipulation
from fedif_flower.attacks.label_noise import LabelNoise
from fedif_flower.attacks.mimic import Mimic
from fedif_flower.attacks.min_max import MinMax
from fedif_flower.attacks.min_sum import MinSum
from fedif_flower.attacks.model_replacement import ModelReplacement
from fedif_flower.attacks.neurotoxin import Neurotoxin
from fedif_flower.attacks.pixel_trigger import PixelTrigger
from fedif_flower.attacks.poisoned_fl import PoisonedFL
from fedif_flower.attacks.random_update import RandomUpdate
from fedif_flower.attacks.scaling import HonestScaling, Scaling
from fedif_flower.attacks.semantic_backdoor import SemanticBackdoor
from fedif_flower.attacks.sign_flip import SignFlip
from fedif_flower.attacks.sybils import Sybils
from fedif_flower.errors import ConfigError
from fedif_flower.registry import Registry
from fedif_flower.sections import SectionedSettings
from fedif_flower.settings import RefusedValueError, setting
from fedif_flower.tasks.task import Task

_BUILT_IN: Mapping[str, Callable[..., Behaviour]] = MappingProxyType(
    {
        "none": Behaviour,
        "label-noise": LabelNoise,
        "gradient-noise": GradientNoise,
        "adversarial": AdversarialSamples,
        "sign-flip": SignFlip,
        "random-update": RandomUpdate,
        "free-rider": ReturnModel,
        "free-rider-noise": ReturnWithNoise,
        "free-rider-step": RepeatStep,
        "scaling": Scaling,
        "honest-scaling": HonestScaling,
        "pixel-trigger": PixelTrigger,
        "distributed-trigger": DistributedTrigger,
        "semantic-backdoor": SemanticBackdoor,
        "hidden-backdoor": HiddenBackdoor,
        "model-replacement": ModelReplacement,
        "neurotoxin": Neurotoxin,
        "edge-case": EdgeCase,
        "descending-backdoor": DescendingBackdoor,
        "alie": Alie,
        "ipm": InnerProductManipulation,
        "min-max": MinMax,
        "min-sum": MinSum,
        "fang": Fang,
        "mimic": Mimic,
        "sybils": Sybils,
        "poisoned-fl": PoisonedFL,
    }
)

# A constructor can have these beside its settings: the client's own poison ratio, the config.
ATTACKS = Registry("attack", _BUILT_IN, offered=("ratio", "malicious_fraction", "config"))


class AttackConfig(SectionedSettings):
    """How malicious clients behave, and how many there are."""

    undecided: ClassVar[Mapping[str, str]] = MappingProxyType({"attack": "none"})  # Nodes may.

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
    attack_first_round: int = setting(1, "malicious clients are honest before this round", ge=1)
    attack_period: int = setting(
        0,
        "from then on they attack for so many rounds, are honest for as many, and so on; 0: they "
        "attack until the end",
        ge=0,
    )

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
    offered = {"ratio": ratio, "malicious_fraction": config.malicious_fraction, "config": config}
    return config.build("attack", Behaviour, offered)


def needs_collusion(config: AttackConfig, seed: int) -> bool:
    """Return whether a run's malicious clients agree on what they send."""
    return isinstance(build_behaviour(config, partition_id=0, seed=seed), Colluder)


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
