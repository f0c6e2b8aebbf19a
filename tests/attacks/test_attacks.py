from __future__ import annotations

import pytest

from fedif_flower.attacks import (
    ATTACKS,
    AttackConfig,
    Behaviour,
    behaviour_of,
    build_behaviour,
    malicious_partitions,
    poison_ratio,
)
from fedif_flower.attacks.gradient_noise import GradientNoise
from fedif_flower.errors import ConfigError


def test_malicious_partitions_misbehave_and_the_others_do_not():
    config = AttackConfig(attack="gradient-noise", malicious_fraction=0.3)
    malicious = malicious_partitions(10, 0.3, seed=5)
    for partition_id in range(10):
        behaviour = behaviour_of(config, partition_id=partition_id, num_clients=10, seed=5)
        assert type(behaviour) is (GradientNoise if partition_id in malicious else Behaviour)


def test_the_settings_reach_the_behaviour():
    own = {"adversarial.epsilon": 0.1, "adversarial.step-size": 0.05, "adversarial.steps": 3}
    config = AttackConfig(attack="adversarial", poison_ratio_min=0.2, poison_ratio_max=0.4, **own)
    adversarial = build_behaviour(config, partition_id=4, seed=9)
    for attack in ATTACKS:
        assert isinstance(
            build_behaviour(AttackConfig(attack=attack), partition_id=0, seed=0), Behaviour
        )
    assert vars(adversarial) == {
        "ratio": poison_ratio(0.2, 0.4, 9, 4),
        "epsilon": 0.1,
        "step_size": 0.05,
        "steps": 3,
    }


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"attack": "bribe"}, "attack = 'bribe'; allowed: none, label-noise"),
        ({"malicious_fraction": 1.1}, "malicious_fraction = 1.1; allowed: a number >= 0 and <= 1"),
        ({"poison_ratio_min": 0.9}, "poison_ratio_min = 0.9; allowed: .* poison_ratio_max = 0.8"),
        ({"adversarial.steps": 0}, "adversarial.steps = 0; allowed: an integer >= 1"),
    ],
)
def test_config_out_of_range_names_key_value_and_range(setting, message):
    with pytest.raises(ConfigError, match=message):
        AttackConfig(**setting)
