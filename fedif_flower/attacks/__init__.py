"""Clients that misbehave, by what they change; one registry line each; nothing here knows Flower.

A new attack is a subclass of :class:`Behaviour` that overrides the hook it needs, and a line in
:data:`ATTACKS`.
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
