from __future__ import annotations

from fedif_flower.attacks import ATTACKS as REGISTERED_ATTACKS
from fedif_flower.strategies.registry import STRATEGIES as REGISTERED_STRATEGIES
from fedif_studies.arena.experiments import (
    ATTACKS,
    SHARES,
    STRATEGIES,
    experiments,
)


def test_every_strategy_meets_every_attack_at_every_share():
    wanted = experiments()
    assert len(set(wanted)) == len(wanted)
    assert len(wanted) == len(STRATEGIES) * (1 + len(ATTACKS) * len(SHARES))
    assert {s["strategy"] for s in STRATEGIES.values()} <= set(REGISTERED_STRATEGIES)
    assert {a["attack"] for a in ATTACKS.values()} <= set(REGISTERED_ATTACKS)
