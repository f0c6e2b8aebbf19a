"""Attacks by the name that ``attack = "..."`` takes: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Self

from pydantic import model_validator

from fedif_flower.attacks.adversarial import AdversarialSamples
from fedif_flower.attacks.assignment import malicious_partitions, poison_ratio
from fedif_flower.attacks.behaviour import Behaviour
from fedif_flower.attacks.gradient_noise import GradientNoise
from fedif_flower.attacks.label_noise import LabelNoise
from fedif_flower.settings import RefusedValueError, Settings, setting

AttackFactory = Callable[["AttackConfig", float], Behaviour]
"""Builds the behaviour from the config and the client's own poison ratio."""

ATTACKS: Mapping[str, AttackFactory] = MappingProxyType(
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
    }
)


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
