from __future__ import annotations

import pytest
import torch

from fedif_flower.attacks import (
    ATTACKS,
    AdversarialSamples,
    AttackConfig,
    Behaviour,
    ClientRound,
    GradientNoise,
    LabelNoise,
    behaviour_of,
    build_behaviour,
    malicious_partitions,
    poison_ratio,
)
from fedif_flower.errors import ConfigError


def test_an_honest_client_returns_what_it_is_given():
    honest, generator = Behaviour(), torch.Generator()
    labels, pixels, params = torch.zeros(2), torch.zeros(2, 1, 8, 8), torch.zeros(5)
    assert honest.poison_labels(labels, 10, generator) is labels
    model = torch.nn.Identity()
    assert honest.poison_inputs(model, pixels, labels, lambda x: x, generator) is pixels
    own = ClientRound(torch.ones(5), params, 1, generator)
    assert honest.poison_update(own) is params


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ("none", Behaviour),
        ("label-noise", LabelNoise),
        ("gradient-noise", GradientNoise),
        ("adversarial", AdversarialSamples),
    ],
)
def test_malicious_partitions_misbehave_and_the_others_do_not(attack, expected):
    config = AttackConfig(attack=attack, malicious_fraction=0.3)
    malicious = malicious_partitions(10, 0.3, seed=5)
    for partition_id in range(10):
        behaviour = behaviour_of(config, partition_id=partition_id, num_clients=10, seed=5)
        assert type(behaviour) is (expected if partition_id in malicious else Behaviour)


def test_every_registered_attack_can_be_built():
    for attack in ATTACKS:
        behaviour = build_behaviour(AttackConfig(attack=attack), partition_id=0, seed=0)
        assert isinstance(behaviour, Behaviour)


def test_the_settings_reach_the_behaviour():
    own = {"adversarial.epsilon": 0.1, "adversarial.step-size": 0.05, "adversarial.steps": 3}
    config = AttackConfig(attack="adversarial", poison_ratio_min=0.2, poison_ratio_max=0.4, **own)
    adversarial = build_behaviour(config, partition_id=4, seed=9)
    assert vars(adversarial) == {
        "ratio": poison_ratio(0.2, 0.4, 9, 4),
        "epsilon": 0.1,
        "step_size": 0.05,
        "steps": 3,
    }
    config = AttackConfig(**{"attack": "gradient-noise", "gradient-noise.std": 0.7})
    assert vars(build_behaviour(config, partition_id=4, seed=9)) == {"std": 0.7}
    config = AttackConfig(attack="label-noise", poison_ratio_min=0.5, poison_ratio_max=0.5)
    assert vars(build_behaviour(config, partition_id=4, seed=9)) == {"ratio": 0.5}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"attack": "bribe"}, "attack = 'bribe'; allowed: none, label-noise"),
        ({"malicious_fraction": 1.1}, "malicious_fraction = 1.1; allowed: a number >= 0 and <= 1"),
        ({"poison_ratio_min": -0.1}, "poison_ratio_min = -0.1"),
        ({"poison_ratio_min": 0.9}, "poison_ratio_min = 0.9; allowed: .* poison_ratio_max = 0.8"),
        ({"poison_ratio_max": 2.0}, "poison_ratio_max = 2.0; allowed: a number >= 0 and <= 1"),
        ({"gradient-noise.std": float("nan")}, "gradient-noise.std = nan; allowed: a number >= 0"),
        (
            {"adversarial.epsilon": 1.5},
            "adversarial.epsilon = 1.5; allowed: a number >= 0 and <= 1",
        ),
        (
            {"adversarial.step-size": 0.0},
            "adversarial.step-size = 0.0; allowed: a number > 0 and <= 1",
        ),
        ({"adversarial.steps": 0}, "adversarial.steps = 0; allowed: an integer >= 1"),
    ],
)
def test_config_out_of_range_names_key_value_and_range(setting, message):
    with pytest.raises(ConfigError, match=message):
        AttackConfig(**setting)
