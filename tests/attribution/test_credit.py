"""What each client contributed to a step, and what of that is credited."""

from __future__ import annotations

import itertools
import math
import statistics

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from fedif_flower.attribution.credit import (
    REMEMBERED,
    Credit,
    CreditBounds,
    PastSteps,
    credited,
    medians_without_each,
    opposition,
    own_lengths,
    usual_lengths,
)
from fedif_flower.attribution.path import (
    ADAPTIVE,
    QUADRATURES,
    block_contributions,
    find_refinements,
    is_settled,
    path_attribution,
    slopes,
)
from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.own_sections import CreditSettings
from fedif_flower.valuation.shapley import exact_shapley
from tests.tolerance import rounding

LAST = torch.tensor([0.0, 0.0, 0.0, 2.0])
near = pytest.approx


def bound(bounds: CreditBounds, updates: Tensor, last: Tensor | None = None, **given) -> Credit:
    updates, m = updates.double(), len(updates)
    own = {
        "examples": torch.full((m,), 10.0),
        "weights": torch.full((m,), 1 / m, dtype=torch.float64),
    } | given
    coordinates = PastSteps([] if last is None else [last]).coordinates(updates)
    known = {"gram": updates @ updates.T, "coordinates": coordinates}
    return bounds.bound(client_ids=range(m), **known | own)


def test_a_long_update_counts_as_so_much_longer_than_usual():
    lengths = torch.diag(torch.tensor([1.0, 1.0, 4.0]))
    credit = bound(CreditBounds(1.25), lengths)
    assert credit.factor.tolist() == near([1.0, 1.0, 1.25 / 4])
    assert credit.length.tolist() == near([1.0, 1.0, 4.0])
    # Shortened in the round already, it is not shortened again.
    short = torch.tensor([1.0, 1.0, 1 / 4], dtype=torch.float64)
    bounds = CreditBounds(1.25)
    assert bound(bounds, lengths, length_factors=short).factor.tolist() == near([1.0] * 3)
    # Lengths are remembered, and go with a checkpoint.
    again = CreditBounds(1.25)
    again.load_state_dict(bounds.state_dict())
    grown = torch.diag(torch.tensor([1.0, 4.0, 4.0]))
    assert bound(again, grown).length.tolist() == bound(bounds, grown).length.tolist()


def test_the_usual_length_is_that_of_all_rounds():
    bounds = CreditBounds()
    # In medians of their rounds, members had 1/2, 1 and 4, and then 4, 1 and 1/2.
    bound(bounds, torch.diag(torch.tensor([1.0, 2.0, 8.0])))
    credit = bound(bounds, torch.diag(torch.tensor([8.0, 2.0, 1.0])))
    # Means of logarithms: 2^(1/2), 1 and 2^(1/2). So 2 * 2^(1/2) is usual.
    expected = [length / (2 * math.sqrt(2)) for length in (8.0, 2.0, 1.0)]
    assert credit.length.tolist() == near(expected)


def test_who_has_more_examples_may_send_longer_updates():
    """Lengths grow with the root of the examples: 10 of them usually make 3 sqrt(10), and so on."""
    examples = torch.tensor([10.0, 20.0, 40.0, 80.0, 160.0])
    credit = bound(CreditBounds(1.25), torch.diag(3.0 * examples.sqrt()), examples=examples)
    assert credit.length.tolist() == near([1.0] * 5)
    assert credit.factor.tolist() == near([1.0] * 5)


def test_who_does_not_move_has_no_length_and_changes_no_other_s():
    bounds = CreditBounds()
    for _ in range(2):
        credit = bound(bounds, torch.diag(torch.tensor([0.0, 0.0, 1.0, 2.0, 4.0])))
        assert credit.length.tolist() == near([0.0, 0.0, 0.5, 1.0, 2.0])
        assert credit.factor.tolist() == near([1.0, 1.0, 1.0, 1.0, 1.25 / 2])


def test_lengths_grow_with_examples_as_the_members_do():
    examples = torch.tensor([10.0, 20.0, 40.0, 80.0, 160.0])
    lengths = 3.0 * examples.sqrt()
    asked = torch.tensor([10.0, 90.0])
    expected = [3.0 * math.sqrt(10), 3.0 * math.sqrt(90)]
    assert usual_lengths(examples, lengths, asked).tolist() == near(expected)
    # One of six that sends a thousand times as much changes nothing.
    longer = torch.cat([lengths, torch.tensor([3e4])])
    more = torch.cat([examples, torch.tensor([40.0])])
    assert usual_lengths(more, longer, asked).tolist() == near(expected, rel=0.2)
    # Of half a million some say the slope: all pairs would take terabytes.
    many = examples.repeat(100_000)
    assert usual_lengths(many, 3.0 * many.sqrt(), asked).tolist() == near(expected)
    # Of fewer than five, the median alone.
    few = usual_lengths(examples[:3], lengths[:3], asked)
    assert few.tolist() == near([3.0 * math.sqrt(20)] * 2)


def test_lengths_grow_no_faster_than_examples_and_never_fall():
    examples = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    asked = torch.tensor([1.0, 4.0, 16.0])
    # With the square of examples: as examples, through the median member.
    grown = usual_lengths(examples, examples**2, asked)
    assert grown.tolist() == near([4.0, 16.0, 64.0])
    # The fewer, the longer: the median, for all.
    fallen = usual_lengths(examples, 1 / examples, asked)
    assert fallen.tolist() == near([0.25] * 3)


def test_the_mean_weight_beyond_so_many_median_members_is_not_credited():
    weights = torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64)
    bounds = CreditBounds(weight=2.0)
    credit = bound(bounds, torch.eye(3), weights=weights)
    assert credit.weight.tolist() == near([0.3, 0.3, 2.4])
    assert credit.factor.tolist() == near([1.0, 1.0, 2.0 / 2.4])
    # It is the mean of a member's rounds that counts: (2.4 + 1) / 2 is within the bound.
    credit = bound(bounds, torch.eye(3))
    assert credit.weight.tolist() == near([0.65, 0.65, 1.7])
    assert credit.factor.tolist() == [1.0] * 3
    # Weights that add up to 2, as coefficients may, are no larger beside each other.
    doubled = bound(CreditBounds(weight=2.0), torch.eye(3), weights=2 * weights)
    assert doubled.weight.tolist() == near([0.3, 0.3, 2.4])
    # Who is beyond both bounds is held to both: 1.25 / 4 of its length, 2 / 2.4 of its weight.
    lengths = torch.diag(torch.tensor([1.0, 1.0, 4.0]))
    both = bound(CreditBounds(1.25, weight=2.0), lengths, weights=weights)
    assert both.factor.tolist() == near([1.0, 1.0, 1.25 / 4 * 2.0 / 2.4])
    # Claims do not help: the share is that of the median member.
    claimed = torch.tensor([10.0, 10.0, 80.0])
    found = bound(CreditBounds(weight=2.0), torch.eye(3), weights=weights, examples=claimed)
    assert found.weight.tolist() == near([1.0, 1.0, 8.0])


def test_the_last_step_beyond_what_is_usual_is_returned():
    # Own lengths 1; of the last step 1, 1, 1 and 3; usual is 1, and 1.5 times that is credited.
    bounds = CreditBounds(0, 1.5, 0)
    updates = torch.tensor([[1.0, 0, 0, 1], [0, 1.0, 0, 1], [0, 0, 1.0, 1], [-1.0, 0, 0, 3.0]])
    credit = bound(bounds, updates, LAST)
    assert credit.borrowed.tolist() == near([1.0, 1.0, 1.0, 3.0])
    assert credit.returned[:, 0].tolist() == near([0.0, 0.0, 0.0, 1.5])
    # Where 2 of the last step is usual, 1.5 times that is credited: of 6, the half.
    more = updates * torch.tensor([1.0, 1.0, 1.0, 2.0])
    credit = bound(CreditBounds(0, 1.5, 0), more, LAST)
    assert credit.borrowed.tolist() == near([1.0, 1.0, 1.0, 3.0])
    assert credit.returned[:, 0].tolist() == near([0.0, 0.0, 0.0, 3.0])
    # The last step alone is returned whole.
    updates[3] = 3 * LAST
    credit = bound(bounds, updates, LAST)
    assert credit.returned[3].item() == near(6.0)
    assert credit.borrowed[3].item() == 99.0
    # A trace of it is left where it is nobody's direction.
    credit = bound(bounds, torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0.05]]), LAST)
    assert credit.returned.tolist() == [[0.0]] * 3
    assert credit.borrowed.tolist() == near([0.0, 0.0, 1.0])


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9))
def test_medians_of_the_others_are_those_of_the_lists_without_each(values):
    expected = [
        statistics.median(values[:place] + values[place + 1 :]) if len(values) > 1 else 0.0
        for place in range(len(values))
    ]
    found = medians_without_each(torch.tensor(values, dtype=torch.float64))
    assert found.tolist() == expected


def test_with_fewer_than_eight_members_what_is_not_borrowed_is_own():
    # Orthogonal updates: nobody's is explained by others'.
    seven = torch.eye(7).double()
    assert own_lengths(seven, torch.zeros(7, 0)).tolist() == near([1.0] * 7)
    eight = torch.eye(8).double()
    assert own_lengths(eight, torch.zeros(8, 0)).tolist() == near([0.0] * 8)
    # What lies in the last step is not own: of a square of 4, a coordinate of 2 leaves nothing.
    gram = 4 * seven
    coordinates = torch.zeros(7, 1)
    coordinates[0] = 2.0
    coordinates[1] = 1.0
    expected = [0.0, math.sqrt(3), *[2.0] * 5]
    assert own_lengths(gram, coordinates).tolist() == near(expected)


def test_two_accomplices_of_ten_explain_nothing_and_a_third_one_does():
    """Of ten, a fifth is not asked: the two that are most like a member, whichever their sign.

    Three that send the same have nobody else alike; of four, one is asked, and explains all but
    the ridge: 1 / 1.001.
    """
    three = torch.eye(10).double()
    signs = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    three[:3, :3] = signs[:, None] * signs
    assert own_lengths(three, torch.zeros(10, 0)).tolist() == near([0.0] * 10)
    four = torch.eye(10).double()
    four[:4, :4] = 1.0
    expected = [math.sqrt(1 / 1.001)] * 4 + [0.0] * 6
    assert own_lengths(four, torch.zeros(10, 0)).tolist() == near(expected)


def test_noise_is_nobodys_own():
    # What eight members have in common is explained; noise of the same length is not.
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(3, 2000, generator=generator)
    updates = torch.randn(10, 3, generator=generator) @ basis
    noise = torch.randn(2000, generator=generator)
    updates = torch.cat([updates, noise[None]]).double()
    own = own_lengths(updates @ updates.T, torch.zeros(11, 0))
    parts = own / updates.norm(dim=1)
    assert parts[:10].min() > 0.9
    assert parts[10] < 0.2
    # Nor is it if an accomplice sends it too.
    doubled = torch.cat([updates, noise[None].double()])
    parts = own_lengths(doubled @ doubled.T, torch.zeros(12, 0)) / doubled.norm(dim=1)
    assert parts[10:].max() < 0.2


def test_who_is_turned_against_all_is_so_alone():
    # Five alike, one against them; cosines of 0.8 among the five, -0.9 between them and the sixth.
    gram = torch.full((6, 6), 0.8).double()
    gram[5, :], gram[:, 5] = -0.9, -0.9
    gram.fill_diagonal_(1.0)
    assert opposition(gram).tolist() == near([0.0] * 5 + [0.9])
    # A pair among others is seen whole, whoever else leans against one of the two.
    gram = torch.eye(6).double()
    gram[0, 1] = gram[1, 0] = -0.95
    gram[0, 2] = gram[2, 0] = -0.3
    assert opposition(gram).tolist() == near([0.95, 0.95, 0.3, 0.0, 0.0, 0.0])


def test_what_is_turned_against_two_others_is_so_by_the_mean_of_both():
    """The second of four is turned against the others by .9, .6 and .2.

    Without the first the median is (.6 + .2) / 2, of which .9 leaves .5; without the third it is
    (.9 + .2) / 2, of which .6 leaves .05; without the last it is .75, of which .2 leaves nothing.
    The others are turned against nobody else: the second keeps its .9.
    """
    gram = torch.eye(4).double()
    for other, against in ((0, 0.9), (2, 0.6), (3, 0.2)):
        gram[1, other] = gram[other, 1] = -against
    assert opposition(gram).tolist() == near([0.5, 0.9, 0.05, 0.0])
    assert medians_without_each(torch.tensor([3.0, 1.0, 2.0])).tolist() == [1.5, 2.5, 2.0]
    assert medians_without_each(torch.tensor([4.0, 1.0])).tolist() == [1.0, 4.0]
    assert medians_without_each(torch.tensor([4.0])).tolist() == [0.0]


@given(
    st.lists(st.floats(-3, 3), min_size=16, max_size=16),
    st.lists(st.floats(-5, 5), min_size=4, max_size=4),
)
def test_nobody_is_credited_with_more_than_it_contributed(entries, values):
    updates = torch.tensor(entries).reshape(4, 4)
    credit = bound(CreditBounds(), updates, torch.tensor([0.0, 1.0, 0.0, 0.0]))
    assert bool(((credit.factor > 0) & (credit.factor <= 1)).all())
    contributions = torch.tensor(values).double()
    returned = credit.returned[:, 0]
    assert bool((returned.abs() <= updates[:, 1].abs() + 1e-6).all())
    paid = credited(contributions, credit.factor, returned * 0.3)
    assert bool((paid <= contributions).all())
    whole = (contributions <= 0) & (returned == 0)
    assert bool((paid[whole] == contributions[whole]).all())


def test_what_is_credited_by_hand():
    """Of 1 without the .4 that is returned, a half; what returned steps took away adds nothing.

    A loss is not halved, nor is one smaller without the .5 that it borrowed.
    """
    contributions = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    returned = torch.tensor([0.4, -2.0, 0.0, 0.5], dtype=torch.float64)
    kept = torch.full((4,), 0.5, dtype=torch.float64)
    assert credited(contributions, kept, returned).tolist() == near([0.3, 0.5, -1.0, -1.0])


@pytest.mark.parametrize("bound", [0.5, -1.0, math.nan, math.inf, "2"])
@pytest.mark.parametrize("name", ["length", "borrowed", "weight"])
def test_a_bound_is_refused_in_the_same_words_by_its_key_and_by_its_argument(name, bound):
    words = rf"{name} = {bound!r}; allowed: 0 \(no bound\) or a number >= 1$"
    with pytest.raises(ConfigError, match=f"^{words}"):
        CreditBounds(**{name: bound})
    with pytest.raises(ConfigError, match=rf"^credit\.{words}"):
        RunConfig.from_run_config({f"credit.{name}": bound})


def test_a_bound_of_nothing_and_one_of_what_is_usual_are_allowed():
    settings = {"credit.length": 0.0, "credit.borrowed": 1.0, "credit.weight": 3.0}
    bounds = RunConfig.from_run_config(settings).section(CreditSettings).bounds()
    assert (bounds.length, bounds.borrowed, bounds.weight) == (0.0, 1.0, 3.0)
    assert CreditBounds(0, 1, 3).borrowed == 1


def test_coordinates_in_the_last_steps_by_hand():
    # The newest step is along the first axis; the one before adds the second.
    newest = torch.tensor([2.0, 0.0, 0.0, 0, 0, 0, 0, 0])
    before = torch.tensor([3.0, -1.0, 0.0, 0, 0, 0, 0, 0])
    updates = torch.tensor([[1.0, 2.0, 5.0, 0, 0, 0, 0, 0], [-4.0, 0.0, 1.0, 0, 0, 0, 0, 0]])
    coordinates = PastSteps([newest, before]).coordinates(updates)
    assert coordinates.tolist() == [[1.0, -2.0], [-4.0, 0.0]]


def test_the_newest_steps_are_remembered_and_those_of_length_0_are_none():
    past = PastSteps()
    assert past.coordinates(torch.ones(2, 12)).shape == (2, 0)
    for axis in range(4):
        past = past.after(torch.eye(12)[axis]).after(torch.zeros(12))
    assert len(past.steps) == REMEMBERED == 3
    found = past.coordinates(torch.eye(12)[:4])
    assert found.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize(("d", "steps"), [(3, 0), (4, 1), (11, 2), (12, 3)])
def test_with_few_parameters_fewer_steps_are_remembered(d, steps):
    """Three steps span a space of three: nothing would be anybody's own there."""
    past = PastSteps()
    for step in torch.eye(d):
        past = past.after(step)
    assert past.coordinates(torch.ones(2, d)).shape == (2, steps)
    assert past.basis.shape == (steps, d)


@pytest.mark.parametrize("m", [3, 5, 10, 12])
def test_where_nobody_has_anything_of_its_own_the_last_step_is_nobodys_excess(m):
    # All send the last step; rounding leaves a residual of some, in float32.
    updates = torch.ones(m, 5)
    coordinates = PastSteps([torch.ones(5)]).coordinates(updates)
    credit = CreditBounds().bound(
        client_ids=range(m),
        examples=torch.full((m,), 10.0),
        weights=torch.full((m,), 1 / m),
        gram=updates @ updates.T,
        coordinates=coordinates,
    )
    assert credit.returned.tolist() == [[0.0]] * m
    assert credit.borrowed.tolist() == [1.0] * m


# -- contributions along the path of a step


RULES = list(QUADRATURES)
TIGHT = rounding(torch.float64)
SEEDS = st.integers(0, 10_000)


class Polynomial:
    """``sum_j c_j x_j + q_j x_j^2 / 2 + k_j x_j^3 / 3 + (r . x)^2 / 2``, float64."""

    def __init__(self, seed: int, d: int = 5, *, cubic: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        c, q, k, r = torch.randn(4, d, generator=generator, dtype=torch.float64)
        self.c, self.q, self.r = c, q, r
        self.k = k if cubic else torch.zeros_like(k)

    def loss(self, x: Tensor) -> float:
        separable = self.c * x + self.q * x**2 / 2 + self.k * x**3 / 3
        return float(separable.sum() + (self.r @ x) ** 2 / 2)

    def gradient(self, x: Tensor) -> Tensor:
        return self.c + self.q * x + self.k * x**2 + (self.r @ x) * self.r


def game(seed: int, m: int = 4, d: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """A model [d], updates [m, d] and coefficients [m], one of them negative now and then."""
    generator = torch.Generator().manual_seed(seed + 1)
    model = torch.randn(d, generator=generator, dtype=torch.float64)
    updates = torch.randn(m, d, generator=generator, dtype=torch.float64)
    return model, updates, torch.randn(m, generator=generator, dtype=torch.float64) / 2 + 0.5


def decrease(loss: Polynomial, model: Tensor, updates: Tensor, coefficients: Tensor) -> Tensor:
    fell = loss.loss(model) - loss.loss(model + coefficients @ updates)
    return torch.tensor(fell, dtype=torch.float64)


def close(actual: Tensor, expected: Tensor) -> None:
    scale = max(float(expected.abs().max()), 1.0)
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=TIGHT * scale)


@pytest.mark.parametrize(
    ("shapes", "gradient", "words"),
    [
        (([4], [3, 5], [3]), [4], r"got \[4\], \[3, 5\] and \[3\]"),
        (([4], [3, 4], [2]), [4], r"got \[4\], \[3, 4\] and \[2\]"),
        (([4], [4], [3]), [4], r"got \[4\], \[4\] and \[3\]"),
        (([4], [3, 4], [3]), [1], r"gradient returns \[1\]; expected \[4\]"),
    ],
)
def test_shapes_that_do_not_fit_are_told(shapes, gradient, words):
    arguments = [torch.zeros(shape) for shape in shapes]
    with pytest.raises(ValuationError, match=words):
        path_attribution(lambda w: torch.zeros(gradient), *arguments)


@pytest.mark.parametrize(
    ("rule", "expected"),
    # The trapezoid sees (0 + 3) / 2 instead of 1: half as much again.
    [("trapezoid", [-0.375, -1.125]), ("simpson", [-0.25, -0.75]), ("gauss2", [-0.25, -0.75])],
)
def test_by_hand(rule, expected):
    # loss = x^2 + y^2 at (1, 1); one client removes x, the other half of y: 1 and 3/4.
    updates = torch.tensor([[-2.0, 0.0], [0.0, -1.0]])
    found = path_attribution(lambda w: 2 * w, torch.ones(2), updates, torch.full((2,), 0.5), rule)
    assert found.tolist() == pytest.approx([1.0, 0.75])
    # loss = x^3 from 0 to 1 by two clients with coefficients 1/4 and 3/4: -1/4 and -3/4.
    start, ones = torch.zeros(1).double(), torch.ones(2, 1).double()
    coefficients = torch.tensor([0.25, 0.75])
    found = path_attribution(lambda w: 3 * w**2, start, ones, coefficients, rule)
    assert found.tolist() == pytest.approx(expected)


@given(seed=SEEDS)
@pytest.mark.parametrize(
    ("rule", "cubic"), [*((rule, False) for rule in RULES), ("simpson", True), ("gauss2", True)]
)
def test_contributions_sum_to_the_decrease_of_a_polynomial(rule, cubic, seed):
    loss, (model, updates, coefficients) = Polynomial(seed, cubic=cubic), game(seed)
    found = path_attribution(loss.gradient, model, updates, coefficients, rule)
    close(found.sum(), decrease(loss, model, updates, coefficients))


@given(seed=SEEDS, who=st.integers(0, 3), zero_weight=st.booleans())
@pytest.mark.parametrize("rule", RULES)
def test_a_zero_update_or_a_zero_weight_gives_exactly_nothing(rule, seed, who, zero_weight):
    loss, (model, updates, coefficients) = Polynomial(seed, cubic=True), game(seed)
    (coefficients if zero_weight else updates)[who] = 0.0
    found = path_attribution(loss.gradient, model, updates, coefficients, rule)
    assert found[who].item() == 0.0
    assert math.copysign(1.0, found[who].item()) == 1.0
    others = [i for i in range(4) if i != who]
    without = path_attribution(loss.gradient, model, updates[others], coefficients[others], rule)
    close(found[others], without)


@given(seed=SEEDS)
@pytest.mark.parametrize("rule", RULES)
def test_it_is_the_shapley_value_of_a_quadratic(rule, seed):
    """The game: a coalition's updates are applied with their coefficients, the others' are not."""
    loss, (model, updates, coefficients) = Polynomial(seed), game(seed)

    def worth(masks: Tensor) -> Tensor:
        return torch.stack([decrease(loss, model, updates[c], coefficients[c]) for c in masks])

    found = path_attribution(loss.gradient, model, updates, coefficients, rule)
    close(found, exact_shapley(worth, 4))


def test_each_refinement_has_the_nodes_of_the_one_before():
    rules = find_refinements(ADAPTIVE)
    assert [len(rule.nodes) for rule in rules] == [3, 5, 9, 17]
    for coarse, fine in itertools.pairwise(rules):
        assert fine.nodes[::2] == coarse.nodes
    assert rules[1].weights == pytest.approx((1 / 12, 4 / 12, 2 / 12, 4 / 12, 1 / 12))
    assert find_refinements("gauss2") == (QUADRATURES["gauss2"],)
    with pytest.raises(ValuationError, match=r"rule = 'midpoint'; allowed: .*gauss2, adaptive"):
        find_refinements("midpoint")


def test_contributions_are_settled_once_they_add_up_or_change_no_more():
    found = torch.tensor([1.0, -0.5])  # 2 % of the sizes' sum: 0.03
    assert is_settled(found, None, 0.52)
    assert not is_settled(found, None, 0.54)
    assert not is_settled(found, None, 0.46)  # What they say too much is no less wrong.
    assert not is_settled(found, found + 0.02, 0.54)
    assert is_settled(found, found + 0.014, 0.54)
    assert is_settled(torch.zeros(2), None, 0.0)


@given(SEEDS)
def test_blocks_contributions_are_those_to_their_own_losses_and_add_up(seed):
    blocks, weights = [Polynomial(seed + 7 * k) for k in range(3)], torch.tensor([0.5, 0.25, 0.25])
    model, updates, coefficients = game(seed)

    def whole(x: Tensor) -> Tensor:
        return sum(w * block.gradient(x) for w, block in zip(weights, blocks, strict=True))

    middle = model + coefficients @ updates / 2
    along = torch.stack([slopes(updates, block.gradient(middle)) for block in blocks])
    total = path_attribution(whole, model, updates, coefficients)
    found = block_contributions(along, coefficients, weights, total)
    close(found.sum(dim=0), total)
    for own, weight, block in zip(found, weights, blocks, strict=True):
        close(own, weight * path_attribution(block.gradient, model, updates, coefficients))
