"""Who is malicious, when, how much of its data, and by which settings."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.attacks import (
    ATTACKS,
    AttackConfig,
    Behaviour,
    attacks_now,
    behaviour_of,
    build_behaviour,
    malicious_partitions,
    poison_ratio,
)
from fedif_flower.attacks.gradient_noise import GradientNoise
from fedif_flower.attacks.label_noise import flip_labels
from fedif_flower.errors import ConfigError


@given(st.integers(1, 300), st.floats(0, 1), st.integers(0, 2**31))
def test_the_share_is_exact_and_drawn_once_from_the_seed(num_clients, fraction, seed):
    chosen = malicious_partitions(num_clients, fraction, seed)
    assert len(chosen) == round(fraction * num_clients)
    assert all(type(partition) is int and 0 <= partition < num_clients for partition in chosen)
    assert malicious_partitions(num_clients, fraction, seed) == chosen


def test_each_client_keeps_its_own_uniform_ratio():
    ratios = [poison_ratio(0.6, 0.8, 0, partition) for partition in range(500)]
    assert all(0.6 <= ratio <= 0.8 for ratio in ratios)
    # Uniform: mean 0.7 and standard error 0.2 / sqrt(12 * 500) = 0.0026.
    assert abs(sum(ratios) / 500 - 0.7) < 0.013
    assert len(set(ratios)) == 500
    assert poison_ratio(0.6, 0.8, 0, 7) == ratios[7]
    assert poison_ratio(0.6, 0.8, 1, 7) != ratios[7]
    assert poison_ratio(0.5, 0.5, 0, 7) == 0.5


@pytest.mark.parametrize(
    ("first", "period", "attacking"),
    [(1, 0, [1, 2, 3, 4, 5, 6, 7]), (4, 0, [4, 5, 6, 7]), (3, 2, [3, 4, 7]), (2, 1, [2, 4, 6])],
)
def test_attackers_are_honest_attack_and_are_honest_again(first, period, attacking):
    assert [t for t in range(1, 8) if attacks_now(t, first, period)] == attacking


@given(st.integers(0, 200), st.integers(2, 20), st.floats(0, 1), st.integers(0, 2**31))
def test_exactly_the_share_is_flipped_and_never_to_the_same_class(count, num_classes, ratio, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (count,), generator=generator)
    kept = labels.clone()
    flipped = flip_labels(labels, num_classes, ratio, generator)
    assert int((flipped != labels).sum()) == round(ratio * count)
    assert flipped.dtype == torch.int64
    assert bool(((flipped >= 0) & (flipped < num_classes)).all())
    assert torch.equal(labels, kept)


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
    expected = {"ratio": poison_ratio(0.2, 0.4, 9, 4), "epsilon": 0.1, "step_size": 0.05}
    assert vars(adversarial) == expected | {"steps": 3}
    for attack in ATTACKS:
        made = build_behaviour(AttackConfig(attack=attack), partition_id=0, seed=0)
        assert isinstance(made, Behaviour)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"attack": "bribe"}, "attack = 'bribe'; allowed: none, label-noise"),
        ({"poison_ratio_min": 0.9}, "poison_ratio_min = 0.9; allowed: .* poison_ratio_max = 0.8"),
        ({"adversarial.steps": 0}, "adversarial.steps = 0; allowed: an integer >= 1"),
    ],
)
def test_config_out_of_range_names_key_value_and_range(setting, message):
    with pytest.raises(ConfigError, match=message):
        AttackConfig(**setting)
