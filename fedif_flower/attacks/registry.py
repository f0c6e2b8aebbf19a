"""The attacks by the names that ``attack = "..."`` takes, and what a client does under one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Self

from pydantic import model_validator
from torch import Tensor

from fedif_flower.attacks.assignment import malicious_partitions, poison_ratio
from fedif_flower.attacks.behaviour import Backdoor, Behaviour, Colluder
from fedif_flower.attacks.pixel_trigger import require_target
from fedif_flower.errors import ConfigError, DataError, require
from fedif_flower.registry import Registry
from fedif_flower.sections import SectionedSettings
from fedif_flower.settings import setting
from fedif_flower.tasks.structures import describe
from fedif_flower.tasks.task import Task

# Modules of this folder with the classes in them. A module is imported when its attack is named.
_BUILT_IN = {
    "none": "behaviour:Behaviour",
    "label-noise": "label_noise:LabelNoise",
    "gradient-noise": "gradient_noise:GradientNoise",
    "adversarial": "adversarial:AdversarialSamples",
    "sign-flip": "sign_flip:SignFlip",
    "random-update": "random_update:RandomUpdate",
    "free-rider": "free_riders:ReturnModel",
    "free-rider-noise": "free_riders:ReturnWithNoise",
    "free-rider-step": "free_riders:RepeatStep",
    "scaling": "scaling:Scaling",
    "honest-scaling": "scaling:HonestScaling",
    "pixel-trigger": "pixel_trigger:PixelTrigger",
    "distributed-trigger": "distributed_trigger:DistributedTrigger",
    "semantic-backdoor": "semantic_backdoor:SemanticBackdoor",
    "hidden-backdoor": "hidden_backdoor:HiddenBackdoor",
    "model-replacement": "model_replacement:ModelReplacement",
    "neurotoxin": "neurotoxin:Neurotoxin",
    "edge-case": "edge_case:EdgeCase",
    "descending-backdoor": "descending_backdoor:DescendingBackdoor",
    "alie": "alie:Alie",
    "ipm": "ipm:InnerProductManipulation",
    "min-max": "min_max:MinMax",
    "min-sum": "min_sum:MinSum",
    "fang": "fang:Fang",
    "mimic": "mimic:Mimic",
    "sybils": "sybils:Sybils",
    "poisoned-fl": "poisoned_fl:PoisonedFL",
}

# Beside its settings, a constructor may have the arguments that are ``offered``: the client's own
# poison ratio, the share of malicious clients, and the whole config.
ATTACKS = Registry(
    "attack",
    {name: f"{__package__}.{path}" for name, path in _BUILT_IN.items()},
    offered=("ratio", "malicious_fraction", "config"),
    makes=(Behaviour,),
)


class AttackConfig(SectionedSettings):
    """How malicious clients behave, and how many there are."""

    # With attack = "none", a node may still name an attack in its own config, so that settings of
    # every attack are allowed.
    undecided: ClassVar[Mapping[str, str]] = MappingProxyType({"attack": "none"})

    attack: str = setting("none", "what malicious clients do", choices=ATTACKS)
    malicious_fraction: float = setting(
        0.5, "share of the clients that are malicious (the paper's n_level)", ge=0, le=1
    )
    poison_ratio_min: float = setting(
        0.7, "least share of a malicious client's samples that are poisoned (n_ratio)", ge=0, le=1
    )
    poison_ratio_max: float = setting(
        0.8,
        "largest share of a malicious client's samples that are poisoned; each draws its own share "
        "between poison-ratio-min and this one",
        ge=0,
        le=1,
    )
    attack_first_round: int = setting(1, "malicious clients are honest before this round", ge=1)
    attack_period: int = setting(
        0,
        "how many rounds they attack from then on, before they are honest for as many, attack "
        "again, and so on; 0: they attack until the end",
        ge=0,
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low = self.poison_ratio_min
        high = self.poison_ratio_max
        require(low <= high, "poison_ratio_min", low, f"<= poison_ratio_max = {high}")
        return self


def build_behaviour(config: AttackConfig, *, partition_id: int, seed: int) -> Behaviour:
    """Return the behaviour of a *malicious* client.

    Parameters
    ----------
    config : AttackConfig
        The attack and its settings.
    partition_id : int
        The client, >= 0. Its poison ratio depends on this id, the seed and the configured range.
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
    """Return a client's behaviour: honest, unless it is one of the malicious partitions.

    Parameters
    ----------
    config : AttackConfig
        The attack, its settings, and the share of malicious clients.
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


def require_data_fit(acting: Behaviour, task: Task, inputs: Tensor, labels: Tensor) -> None:
    """Raise DataError if an attack does not work on a client's inputs or labels.

    Parameters
    ----------
    acting : Behaviour
        The attack.
    task : Task
        The task that the data belong to.
    inputs, labels : Tensor
        ``[n, ...]`` each: the client's data.
    """
    name = type(acting).__name__
    if task.input_range and acting.changes_inputs and not inputs.is_floating_point():
        raise DataError(
            f"attack {name} needs float inputs within input_range; the inputs of task "
            f"{task.name!r} are {describe(inputs)}"
        )
    missing = acting.label_misfit(labels)
    if missing:
        raise DataError(
            f"attack {name} needs {missing}; the targets of task {task.name!r} are "
            f"{describe(labels)}"
        )


def require_fit(acting: Behaviour, task: Task, attack: str) -> None:
    """Raise ConfigError if an attack needs something that a task does not have.

    Parameters
    ----------
    acting : Behaviour
        The attack.
    task : Task
        The task.
    attack : str
        The attack's name in the run config, for errors.
    """
    missing = acting.misfit(task)
    if missing:
        raise ConfigError(f"attack {attack!r} needs {missing}, which task {task.name!r} lacks")
    if isinstance(acting, Backdoor) and task.num_classes:
        # A user's own backdoor may have no target: then there is nothing to check.
        require_target(getattr(acting, "target", 0), task.num_classes, f"{attack}.target")
