from __future__ import annotations

import math

import pytest
import torch

from fedif_flower.attacks.poisoned_fl import PoisonedFL, _follows

HONEST = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_rounds_by_hand():
    attack = PoisonedFL(factor=2.0)
    assert torch.equal(attack.collude(torch.zeros(2), HONEST, generator()), HONEST)
    # The first step is (3, 4): they sent nothing for it, so the magnitudes are (0.6, 0.8).
    first = attack.collude(torch.tensor([3.0, 4.0]), HONEST, generator())
    assert torch.equal(first[0], first[1])
    assert first[0].abs().tolist() == pytest.approx([6, 8])
    # The next one is (0, 5), and their unit vector (0.6, 0.8) times the signs.
    second = attack.collude(torch.tensor([3.0, 9.0]), HONEST, generator())[0]
    assert torch.equal(second.sign(), first[0].sign())
    left = [abs(0 - 5 * 0.6 * first[0, 0].sign()), abs(5 - 5 * 0.8 * first[0, 1].sign())]
    length = math.hypot(*left)
    assert second.abs().tolist() == pytest.approx([2 * 5 * float(x) / length for x in left])


def test_the_factor_shrinks_only_where_the_model_does_not_follow():
    for follows, expected in ((True, 8.0), (False, 8.0 * 0.7)):
        attack = PoisonedFL(patience=2)
        attack.collude(torch.zeros(1000), torch.ones(1, 1000), generator())
        signs = attack.collude(torch.ones(1000), torch.ones(1, 1000), generator())[0].sign()
        attack.collude(signs if follows else -signs, torch.ones(1, 1000), generator())
        assert attack.factor == pytest.approx(expected)


@pytest.mark.parametrize(("factor", "expected"), [(0.6, 0.5), (0.3, 0.3)])
def test_the_factor_has_an_end(factor, expected):
    attack = PoisonedFL(factor=factor, patience=1)
    attack.collude(torch.zeros(100), torch.ones(1, 100), generator())
    for step in range(1, 5):
        attack.collude(torch.full((100,), float(step)) * 0, torch.ones(1, 100), generator())
    assert attack.factor == pytest.approx(expected)


def test_half_of_the_coordinates_are_chance():
    signs = torch.ones(10_000)
    moved = torch.cat([torch.ones(5_100), -torch.ones(4_900)])
    assert not _follows(moved, signs)  # 5,116 would be significant.
    moved[5_100:5_120] = 1.0
    assert _follows(moved, signs)


def test_a_model_that_stands_still_is_sent_back():
    attack = PoisonedFL()
    attack.collude(torch.zeros(2), HONEST, generator())
    assert attack.collude(torch.zeros(2), HONEST, generator()).tolist() == [[0, 0], [0, 0]]
