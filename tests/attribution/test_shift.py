"""Contributions and shares with another mix of classes: by hand, and what holds for any."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from fedif_flower.attribution.shift import Swap, least_swap, share_intervals
from fedif_flower.errors import ConfigError, ValuationError

HALVES = np.array([0.5, 0.5])
THIRDS = np.full(3, 1 / 3)


def chi_square(mix, shares):
    return float(((mix - shares) ** 2 / shares).sum())


def contribution_ends(by_class, mix, radius):
    """Return the ends ``[n, 2]`` of contributions, out of shares of a whole that no mix changes.

    Each member is lifted by the same in every class, so that all are paid whatever the mix.
    """
    lift = 1.0 + np.abs(by_class[:, mix > 0] / mix[mix > 0]).max()
    credited = by_class + lift * mix
    whole = 2 * lift * len(by_class)
    contributed = np.tile(whole * mix / len(by_class), (len(by_class), 1))
    return share_intervals(credited, contributed, mix, radius) * whole - lift


# -- by hand


@pytest.mark.parametrize(
    ("radius", "ends"),
    [
        (0.0, [2.0, 2.0]),
        (0.25, [1.5, 2.5]),  # 2 +- sqrt(.25 x 1): q = (.75, .25).
        (1.0, [1.0, 3.0]),  # One class alone: (1 - .5)^2 / .5 + .5^2 / .5 = 1.
        (9.0, [1.0, 3.0]),
    ],
)
def test_a_contribution_moves_with_the_mix(radius, ends):
    """To the classes' means 1 and 3, each half of the set: the columns are .5 and 1.5."""
    found = contribution_ends(np.array([[0.5, 1.5]]), HALVES, radius)
    assert found[0].tolist() == pytest.approx(ends)


def test_a_class_that_would_be_below_nothing_is_at_nothing():
    """Means 0, 0 and 3, a third each, and rho = 1.

    All three: 1 + sqrt(1 x 2) = 2.41, q = 1/3 (1 + (c_k - 1) sqrt(1 / 2)): all >= 0. Downwards the
    third class would be at 1/3 (1 - 1.41); it is left out, and the others have 0.
    """
    columns = np.array([[0.0, 0.0, 1.0]])
    low, high = contribution_ends(columns, THIRDS, 1.0)[0]
    assert high == pytest.approx(1 + math.sqrt(2))
    assert low == pytest.approx(0, abs=1e-12)
    # Of two classes at most 1 + rho = (1 + v / (m - nu)^2) / P: with means 0, 1, 5, rho = 1.5,
    # A = {1, 5}: m = 3, v = 4, P = 2/3, so that m + sqrt(4 (2/3 x 2.5 - 1)) = 3 + sqrt(8/3).
    columns = np.array([[0.0, 1.0, 5.0]]) / 3
    _, high = contribution_ends(columns, THIRDS, 1.5)[0]
    assert high == pytest.approx(3 + math.sqrt(8 / 3))


def test_a_share_moves_with_the_mix():
    """Means 1, 3 and 3, 1: the shares are what q has of 1 and 3 in all of 4."""
    columns = np.array([[0.5, 1.5], [1.5, 0.5]])
    found = share_intervals(columns, columns, HALVES, 0.25)
    assert found.ravel().tolist() == pytest.approx([1.5 / 4, 2.5 / 4] * 2)
    # Of twice as much that was gained it is half.
    found = share_intervals(columns, 2 * columns, HALVES, 0.25)
    assert found.ravel().tolist() == pytest.approx([1.5 / 8, 2.5 / 8] * 2)


def test_a_linear_fraction_by_hand():
    """Means 1, 3 of 2, 4: (q_1 + 3 q_2) / (2 q_1 + 4 q_2) at q = (.75, .25) and (.25, .75)."""
    first = np.array([0.5, 1.5])
    second = np.array([0.5, 0.5])
    found = share_intervals(np.stack([first, second]), np.stack([first, second]), HALVES, 0.25)
    assert found[0].tolist() == pytest.approx([1.5 / 2.5, 2.5 / 3.5])
    assert found[1].tolist() == pytest.approx([1 / 3.5, 1 / 2.5])


def test_who_is_paid_nothing_has_no_share_and_a_whole_of_nothing_bounds_none():
    columns = np.array([[1.0, 1.0], [-1.0, 0.5]])
    assert share_intervals(columns, columns, HALVES, 0.1)[1].tolist() == [0, 0]
    losing = np.array([[3.0, -1.0]])
    assert share_intervals(losing, losing, HALVES, 1.0).tolist() == [[0, 1]]
    assert share_intervals(-columns, -columns, HALVES, 0.0)[0].tolist() == [0, 0]


def test_the_least_change_that_swaps_two():
    """Differences of 3 and -1 in halves: D = 1, variance 4, so rho = 1/4 and lambda = 1/4."""
    swap = least_swap(np.array([1.5, 0.5]), np.array([0.0, 1.0]), HALVES)
    assert swap.distance == pytest.approx(0.25)
    assert swap.mix.tolist() == pytest.approx([0.25, 0.75])
    assert swap.ratios.tolist() == pytest.approx([0.5, 1.5])
    assert swap.most_moved in (0, 1)
    assert swap.words("Ada", "Bob").startswith("Bob would be level with Ada with another mix")


def test_the_class_that_moves_most_is_named():
    """Differences 2, 2, -1 with the parts .4, .4, .2: D = 1.4, variance 1.44."""
    shares = np.array([0.4, 0.4, 0.2])
    gap = shares * [2, 2, -1]
    swap = least_swap(gap, np.zeros(3), shares)
    assert swap.distance == pytest.approx(1.4**2 / 1.44)
    assert swap.most_moved == 2
    assert "class 2 3.33 times as often" in swap.words("A", "B")  # 1 + 1.4 x 2.4 / 1.44


def test_the_least_change_leaves_a_class_out():
    """Differences 30, 10 and -1, a third each: without the first, 10 and -1 as 1 to 10.

    The others have P = 2/3, m = 4.5 and v = 5.5^2; 1 + rho = (1 + m^2 / v) 3 / 2.
    """
    gap = np.array([30.0, 10.0, -1.0]) / 3
    swap = least_swap(gap, np.zeros(3), THIRDS)
    assert swap.mix.tolist() == pytest.approx([0, 1 / 11, 10 / 11], abs=1e-12)
    assert swap.distance == pytest.approx((1 + 4.5**2 / 5.5**2) * 1.5 - 1)


@pytest.mark.parametrize(
    "gap",
    [[1.0, 1.0], [1.0, 2.0], [0.1, np.nextafter(0.1, 1.0)]],
    ids=["all alike", "in each", "rounding"],
)
def test_who_is_ahead_in_every_class_is_never_level(gap):
    swap = least_swap(np.array(gap), np.zeros(2), HALVES)
    assert swap == Swap(math.inf)
    assert swap.most_moved is None
    assert swap.words("Ada", "Bob") == "no mix of the held-out classes puts Bob level with Ada"


def test_a_class_without_a_difference_takes_all():
    swap = least_swap(np.array([1.0, 0.0]), np.zeros(2), HALVES)
    assert (swap.distance, swap.mix.tolist()) == (1.0, [0, 1])


def test_equal_members_are_level_as_it_is():
    swap = least_swap(np.array([1.0, 2.0]), np.array([2.0, 1.0]), HALVES)
    assert (swap.distance, swap.mix.tolist()) == (0.0, [0.5, 0.5])


def test_a_class_that_weighs_nothing_is_left_out_of_every_mix():
    """As in the tests above, with a class between the two to which the loss gives the weight 0."""
    mix = np.array([0.5, 0.0, 0.5])
    ends = contribution_ends(np.array([[0.5, 0.0, 1.5]]), mix, 0.25)
    assert ends[0].tolist() == pytest.approx([1.5, 2.5])
    columns = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    of_two = np.array([[1.0, 0.0], [0.0, 1.0]])
    found = share_intervals(columns, columns, mix, 0.25)
    assert found.tolist() == share_intervals(of_two, of_two, HALVES, 0.25).tolist()
    # Means 6, 0 and 0, 3: differences 6 and -3, D = 1.5, variance 4.5^2.
    swap = least_swap(np.array([3.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.5]), mix)
    assert swap.distance == pytest.approx(1 / 9)
    assert swap.mix.tolist() == pytest.approx([1 / 3, 0.0, 2 / 3])
    assert swap.ratios.tolist() == pytest.approx([2 / 3, 1.0, 4 / 3])


def test_what_cannot_be_valued_is_refused():
    columns = np.ones((1, 3))
    with pytest.raises(ValuationError, match=r"no example of the classes \[1\]: what members"):
        share_intervals(columns, columns, np.array([0.5, 0.0, 0.5]), 0.1)
    with pytest.raises(ValuationError, match=r"class are \(1, 3\), the mix of classes \(2,\)"):
        share_intervals(columns, columns, HALVES, 0.1)
    with pytest.raises(ValuationError, match=r"class are \(2, 3\), credits \(1, 3\); allowed"):
        share_intervals(columns, np.ones((2, 3)), THIRDS, 0.1)
    with pytest.raises(ValuationError, match=r"`ahead` is \(3,\), `behind` \(2,\); allowed: \[C\]"):
        least_swap(np.ones(3), np.ones(2), THIRDS)
    with pytest.raises(ValuationError, match=r"sums to 0\.9; allowed: 1"):
        share_intervals(columns, columns, np.full(3, 0.3), 0.1)
    with pytest.raises(ConfigError, match=r"radius = -0.1; allowed: a number >= 0"):
        share_intervals(columns, columns, THIRDS, -0.1)
    with pytest.raises(ValuationError, match="`ahead` contributed less than `behind`"):
        least_swap(np.zeros(2), np.ones(2), HALVES)


# -- what holds for any


figures = st.floats(-5, 5, allow_subnormal=False).map(lambda value: round(value, 3))


@st.composite
def runs(draw, members=3):
    classes = draw(st.integers(1, 5))
    counts = draw(arrays(int, classes, elements=st.integers(1, 40)))
    by_class = draw(arrays(np.float64, (members, classes), elements=figures))
    return by_class, counts / counts.sum()


radii = st.floats(0, 3)


@given(runs(), radii, radii)
def test_a_larger_ball_has_wider_ends(run, one, other):
    by_class, mix = run
    small, large = sorted([one, other])
    for ends in (
        lambda radius: contribution_ends(by_class, mix, radius),
        lambda radius: share_intervals(by_class, by_class, mix, radius),
    ):
        inner, outer = ends(small), ends(large)
        assert (outer[:, 0] <= inner[:, 0] + 1e-7).all()
        assert (inner[:, 1] <= outer[:, 1] + 1e-7).all()


@given(runs())
def test_without_a_ball_it_is_the_figure_itself(run):
    by_class, mix = run
    found = contribution_ends(by_class, mix, 0.0)
    assert found == pytest.approx(np.stack([by_class.sum(axis=1)] * 2, axis=1), abs=1e-6)
    paid = by_class.sum(axis=1).clip(0)
    assume(paid.sum() > 1e-3)
    shares = paid / max(paid.sum(), by_class.sum())
    found = share_intervals(by_class, by_class, mix, 0.0)
    assert found == pytest.approx(np.stack([shares] * 2, axis=1), abs=1e-6)


@given(runs(members=1), radii, st.randoms(use_true_random=False))
def test_no_mix_in_the_ball_lies_outside_the_ends(run, radius, random):
    by_class, mix = run
    low, high = contribution_ends(by_class, mix, radius)[0]
    other = np.array([random.random() + 1e-3 for _ in mix])
    other /= other.sum()
    # On the way to another mix, as far as the ball reaches.
    distance = chi_square(other, mix)
    way = min(1.0, math.sqrt(radius / distance)) if distance else 1.0
    inside = mix + way * (other - mix)
    value = float(inside @ (by_class[0] / mix))
    assert low - 1e-6 <= value <= high + 1e-6


@given(runs(members=2))
def test_at_the_least_change_both_are_level_and_within_less_they_are_not(run):
    (ahead, behind), mix = run
    if ahead.sum() < behind.sum():
        ahead, behind = behind, ahead
    assume(ahead.sum() - behind.sum() > 1e-3)
    swap = least_swap(ahead, behind, mix)
    gap = (ahead - behind)[None]
    if swap.mix is None:
        assert (gap > 0).all()
        assert contribution_ends(gap, mix, 1e6)[0, 0] > 0
        return
    assert swap.mix.min() >= 0
    assert swap.mix.sum() == pytest.approx(1)
    scale = np.abs(gap / mix).max()
    assert float(swap.mix @ (gap[0] / mix)) == pytest.approx(0, abs=1e-9 * scale)
    assert swap.distance == pytest.approx(chi_square(swap.mix, mix))
    assert contribution_ends(gap, mix, 0.99 * swap.distance)[0, 0] > -1e-9 * scale
    assert contribution_ends(gap, mix, 1.01 * swap.distance)[0, 0] < 1e-9 * scale


@pytest.mark.parametrize("seed", range(3))
def test_a_solver_finds_the_same(seed):
    """A general solver of convex problems (SLSQP), whose tolerance it is."""
    generator = np.random.default_rng(seed)
    mix = generator.dirichlet(np.ones(5) * 3)
    by_class = generator.normal(0.3, 1.0, (2, 5)) * mix
    by_class[0] += max(0.0, by_class[1].sum() - by_class[0].sum() + 0.3) * mix
    sums_to_1 = {"type": "eq", "fun": lambda q: q.sum() - 1}
    is_level = {"type": "eq", "fun": lambda q: q @ ((by_class[0] - by_class[1]) / mix)}
    within = {"type": "ineq", "fun": lambda q: 0.8 - chi_square(q, mix)}
    how = {"x0": mix, "bounds": [(0, 1)] * 5, "method": "SLSQP", "options": {"ftol": 1e-12}}
    solved = minimize(lambda q: chi_square(q, mix), constraints=[sums_to_1, is_level], **how)
    assert least_swap(by_class[0], by_class[1], mix).distance == pytest.approx(solved.fun, rel=1e-4)
    solved = minimize(lambda q: q @ (by_class[0] / mix), constraints=[sums_to_1, within], **how)
    found = contribution_ends(by_class, mix, 0.8)
    assert found[0, 0] == pytest.approx(solved.fun, rel=1e-4, abs=1e-6)
