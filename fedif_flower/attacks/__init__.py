"""Clients that misbehave: one file per attack, one registry line each; nothing here knows Flower.

A new attack is a subclass of :class:`Behaviour` that overrides the hook it needs, and a line in
:data:`ATTACKS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fedif_flower.attacks.adversarial import AdversarialSamples
from fedif_flower.attacks.assignment import malicious_partitions, poison_ratio
from fedif_flower.attacks.behaviour import Behaviour
from fedif_flower.attacks.gradient_noise import GradientNoise
from fedif_flower.attacks.label_noise import LabelNoise
from fedif_flower.errors import require

__all__ = [
    "ATTACKS",
    "AdversarialSamples",
    "AttackConfig",
    "AttackFactory",
    "Behaviour",
    "GradientNoise",
    "LabelNoise",
    "behaviour_of",
    "build_behaviour",
    "malicious_partitions",
    "poison_ratio",
]


@dataclass(frozen=True)
class AttackConfig:
    """How malicious clients behave, and how many there are.

    Attributes
    ----------
    attack : str
        One of :data:`ATTACKS`.
    malicious_fraction : float
        Share of the clients that are malicious, in [0, 1] (the paper's ``n_level``).
    poison_ratio_min, poison_ratio_max : float
        Each malicious client poisons a share of its samples drawn uniformly from this range,
        0 <= min <= max <= 1 (the paper's ``n_ratio``).
    gradient_noise_std : float
        Standard deviation of gradient noise, >= 0.
    pgd_epsilon, pgd_step_size : float
        Radius in [0, 1] and step in (0, 1] of adversarial samples, in units of the pixel range.
    pgd_steps : int
        Gradient steps per adversarial sample, >= 1.

    Raises
    ------
    ConfigError
        Naming the key, its value and what is allowed.
    """

    attack: str = "none"
    malicious_fraction: float = 0.5
    poison_ratio_min: float = 0.7
    poison_ratio_max: float = 0.8
    gradient_noise_std: float = 0.1
    pgd_epsilon: float = 0.03
    pgd_step_size: float = 0.01
    pgd_steps: int = 20

    def __post_init__(self) -> None:
        require(self.attack in ATTACKS, "attack", self.attack, ", ".join(ATTACKS))
        low, high, share = self.poison_ratio_min, self.poison_ratio_max, self.malicious_fraction
        std, radius, step = self.gradient_noise_std, self.pgd_epsilon, self.pgd_step_size
        require(0 <= share <= 1, "malicious-fraction", share, ">= 0 and <= 1")
        require(0 <= high <= 1, "poison-ratio-max", high, ">= 0 and <= 1")
        require(0 <= low <= high, "poison-ratio-min", low, f">= 0 and <= poison-ratio-max = {high}")
        require(0 <= std < math.inf, "gradient-noise-std", std, ">= 0")
        require(0 <= radius <= 1, "pgd-epsilon", radius, ">= 0 and <= 1")
        require(0 < step <= 1, "pgd-step-size", step, "> 0 and <= 1")
        require(self.pgd_steps >= 1, "pgd-steps", self.pgd_steps, ">= 1")


AttackFactory = Callable[[AttackConfig, float], Behaviour]
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
