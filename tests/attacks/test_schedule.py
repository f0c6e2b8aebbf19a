from __future__ import annotations

import pytest

from fedif_flower.attacks import attacks_now


@pytest.mark.parametrize(
    ("first", "period", "attacking"),
    [(1, 0, [1, 2, 3, 4, 5, 6, 7]), (4, 0, [4, 5, 6, 7]), (3, 2, [3, 4, 7]), (2, 1, [2, 4, 6])],
)
def test_attackers_are_honest_attack_and_are_honest_again(first, period, attacking):
    assert [t for t in range(1, 8) if attacks_now(t, first, period)] == attacking
