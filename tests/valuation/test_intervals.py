"""Intervals for another held-out set, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t

from fedif_flower.valuation.intervals import half_widths, intervals, share_half_widths

HALVES = np.array([0.5, 0.5])


def test_a_jackknife_by_hand():
    # Without a block: 2 * 3 = 6 and 2 * 1 = 2, of a sum of 4: variance (4 + 4) / 2.
    found = half_widths(np.array([[1.0, 0.0], [3.0, 0.0]]), HALVES)
    assert found == pytest.approx([t.ppf(0.975, 1) * 2.0, 0.0])


def test_of_equal_blocks_it_is_the_standard_error_of_a_mean():
    values = np.random.default_rng(0).normal(size=(20, 1))
    expected = t.ppf(0.975, 19) * values.std(ddof=1) / math.sqrt(20)
    assert half_widths(values / 20, np.full(20, 1 / 20)) == pytest.approx([expected])
    # Blocks that differ by their sizes alone tell of no luck.
    weights = np.array([0.2, 0.3, 0.5])
    assert half_widths(5 * weights[:, None], weights) == pytest.approx([0.0], abs=1e-12)


def test_shares_move_by_the_delta_method():
    # Sums 4 and 4: a half each. Blocks (1, 3) and (3, 1): d s = (1 - 2, 3 - 2) / 8.
    blocks = np.array([[1.0, 3.0], [3.0, 1.0]])
    expected = half_widths(np.array([[-1 / 8], [1 / 8]]), HALVES)
    assert share_half_widths(blocks, blocks, HALVES) == pytest.approx([expected[0]] * 2)
    # Who is paid nothing has no width, and whoever has all of the gain is certain.
    one = np.array([[1.0, -1.0], [2.0, -0.5]])
    assert share_half_widths(one, one, HALVES) == pytest.approx([0.0, 0.0])


def test_intervals_cover():
    generator, weights = np.random.default_rng(3), np.full(20, 1 / 20)
    hits = 0
    for _ in range(400):
        examples = generator.exponential(size=(60, 1)).reshape(20, 3, 1).mean(axis=1) / 20
        hits += abs(float(examples.sum()) - 1.0) <= float(half_widths(examples, weights)[0])
    assert 0.90 <= hits / 400 <= 0.98


def test_a_member_drawn_once_has_a_wide_interval_and_one_drawn_always_a_narrow_one():
    rounds = np.zeros((20, 3))
    rounds[:, 0] = 0.05  # Every round.
    rounds[7, 1] = 1.0  # Once: of 20 rounds 20 / 19 * (1 - 1 / 20) = 1 is the variance.
    assert intervals(rounds) == pytest.approx(
        np.array([[1.0, 1.0], [1 - t.ppf(0.975, 19), 1 + t.ppf(0.975, 19)], [0.0, 0.0]])
    )
    assert intervals(rounds[:4]) is None
