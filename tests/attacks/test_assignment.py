from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.attacks import attacks_now, malicious_partitions, poison_ratio


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
