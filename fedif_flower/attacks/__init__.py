"""Attacks: what malicious clients do. Nothing here depends on Flower.

A new attack is a subclass of :class:`Behaviour` that overrides the hook it needs, and a line in
``registry.py``, from which :data:`ATTACKS` is made.
"""

from fedif_flower.attacks.assignment import attacks_now, malicious_partitions, poison_ratio
from fedif_flower.attacks.behaviour import Backdoor, Behaviour, ClientRound, Colluder
from fedif_flower.attacks.registry import (
    ATTACKS,
    AttackConfig,
    behaviour_of,
    build_behaviour,
    require_data_fit,
    require_fit,
)

__all__ = [
    "ATTACKS",
    "AttackConfig",
    "Backdoor",
    "Behaviour",
    "ClientRound",
    "Colluder",
    "attacks_now",
    "behaviour_of",
    "build_behaviour",
    "malicious_partitions",
    "poison_ratio",
    "require_data_fit",
    "require_fit",
]
