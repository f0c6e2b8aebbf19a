"""What a server checks before it believes members and keeper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import mse_loss

from fedif_consortium.masking.ring import to_bytes
from fedif_flower import Validation
from fedif_flower.errors import KeeperError, MaskingError
from fedif_flower.valuation.influence import InfluenceValuation
from fedif_flower.valuation.ledger import min_max
from tests.consortium.masking.masked import Faulty
from tests.consortium.masking.parties import OPEN, Parties
from tests.rounds import a_round

LIE = np.uint64(2**36)  # More than what a keeper rounds.
D = 3_001
VECTOR = np.random.default_rng(0).normal(size=D)
WEIGHTS = np.arange(1.0, 5.0)


def summed(update, length: float, **lies) -> np.ndarray:
    """Take the sum of four updates, of a length as stated, of a keeper that tells some lies."""
    parties = Parties(4)
    parties.keeper = Faulty(parties.keeper, **lies)
    masked_round = parties.opened([update] * 4)
    masked_round.lengths = np.full(4, length)
    masked_round.products(torch.from_numpy(VECTOR))
    step = masked_round.summed(torch.from_numpy(WEIGHTS)).numpy()
    masked_round.products(torch.from_numpy(VECTOR[::-1].copy()))  # As contributions are asked for.
    return step


@given(st.integers(0, D - 1), st.integers(2**36, 2**64 - 2**36))
def test_a_lie_in_one_place_is_noticed(place, by):
    def lie(true, *args):
        return true(*args) + np.eye(1, D, place, np.uint64)[0] * np.uint64(by)

    with pytest.raises(KeeperError, match="contradicts its sketches"):
        summed(np.zeros(D), 0.0, weighted_sum=lie)


def _other_sketches(true, *args):
    opened = true(*args)
    return opened.model_copy(update={"packed": to_bytes(opened.sketches + LIE)})


def _once_summed(true, *args):
    return true(*args) + LIE * np.uint64(true.__self__._round.is_summed)


@pytest.mark.parametrize(
    ("lies", "contradicted"),
    [
        ({"weighted_sum": lambda true, *args: ~true(*args)}, "sketches"),
        ({"weighted_sum": lambda true, *args: np.zeros(D, np.uint64)}, "sketches"),
        ({"weighted_sum": lambda true, *at: true(*at[:2], at[2][::-1])}, "sketches"),
        ({"open_round": _other_sketches}, "sketches"),
        ({"products": lambda true, *args: true(*args) + LIE}, "products"),
        ({"products": _once_summed}, "products"),
    ],
)
def test_lies_elsewhere_are_noticed(lies, contradicted):
    with pytest.raises(KeeperError, match=f"contradicts its {contradicted}"):
        summed(np.zeros(D), 0.0, **lies)


def test_a_stated_length_within_the_sketchs_error_is_believed():
    masked_round = Parties(4).opened(np.zeros((4, D)))
    masked_round.sketches = np.array([[1.22], [0.78], [1.23], [0.77]])
    masked_round.lengths = np.ones(4)
    assert sorted(masked_round.untrue()) == [2, 3]  # By 256 sums: 0.221.


ALONG = VECTOR / np.linalg.norm(VECTOR)
BESIDE = ALONG[::-1] - ALONG[::-1] @ ALONG * ALONG


@pytest.mark.parametrize(
    ("direction", "reason"),
    [(ALONG, "a product is larger"), (BESIDE, "the masked sum has length .*, and its updates all")],
)
def test_a_product_and_a_step_are_at_most_as_long_as_stated(direction, reason):
    unit = direction / np.linalg.norm(direction)
    assert summed(1.22 * unit, 1.0) == pytest.approx(12.2 * unit, abs=1e-5)
    with pytest.raises(MaskingError, match=reason):
        summed(1.23 * unit, 1.0)


@pytest.mark.parametrize("units", [1, 2])
def test_rounding_gives_an_update_of_next_to_nothing_no_direction(units):
    """It lies across the vector; the others lie along it, and are as long as 2, 4, 8 and 16."""
    updates = np.zeros((5, 2))
    updates[0, 0] = units * 2.0**-28
    updates[1:, 1] = [2.0, 4.0, 8.0, 16.0]
    # The keeper's rounding is another one in each round: it would pass for up to 1/2 of a unit.
    for _ in range(4):
        masked_round = Parties().opened(updates)
        products = masked_round.products(torch.tensor([0.0, 0.75], dtype=torch.float64))
        assert products[0] == 0.0
        assert products[1:].tolist() == pytest.approx([1.5, 3.0, 6.0, 12.0])


@given(st.integers(2, 6), st.integers(1, 300), st.integers(0, 2**32))
def test_a_masked_round_gives_what_a_plain_one_gives(members, length, seed):
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(members, length)) * 10.0 ** rng.integers(-3, 2, (members, 1))
    policy = OPEN.replace(least_members=2, largest_share=1.0, least_effective_members=1.0)
    norms = np.linalg.norm(updates, axis=1)
    masked_round = Parties(members, policy).opened(updates)
    assert not masked_round.untrue()
    for vector in rng.normal(size=(2, length)):
        allowed = np.sqrt(length) * (2.0**-23 * norms + 2.0**-27) * np.linalg.norm(vector)
        scores = masked_round.products(torch.from_numpy(vector)).numpy()
        assert np.all(np.abs(scores - updates @ vector) <= allowed)
    weights = rng.random(members) + 0.1
    step = masked_round.summed(torch.from_numpy(weights)).numpy()
    largest = np.sum(weights) * np.max(np.abs(updates))
    assert np.all(np.abs(step - weights @ updates) <= members * (2.0**-23 * largest + 2.0**-28))


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_products_are_off_by_no_more_than_is_said(length, seed):
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(3, length)) * 10.0 ** rng.integers(-8, 2, (3, 1))
    vector = rng.normal(size=length)
    policy = OPEN.replace(least_members=2, largest_share=1.0, least_effective_members=1.0)
    masked_round = Parties(3, policy).opened(updates)
    errors = masked_round.product_errors(torch.from_numpy(vector)).numpy()
    products = masked_round.products(torch.from_numpy(vector)).numpy()
    assert np.all(np.abs(products - updates @ vector) <= errors)


UNIT = VECTOR / np.linalg.norm(VECTOR)
# The last member does something else, in a hidden direction or next to nothing at all.
TURNED = 0.6 * UNIT + 0.8 * np.eye(1, D)[0]


@pytest.mark.parametrize(
    ("lengths", "equal"),
    [
        ([1e-5] * 5, [1.0] * 5),
        # Beside the noise of its short update the others are alike, and yet nobody is equal.
        ([1e-2] * 4 + [1e-6], [1.0] * 4 + [0.0]),
    ],
)
def test_what_fixed_point_makes_of_equal_influences(lengths, equal):
    """Identical members have one influence, and one that is turned from them has another."""
    updates = np.array([length * UNIT for length in lengths])
    if lengths[-1] != lengths[0]:
        updates[-1] = lengths[-1] * TURNED
    masked_round = Parties().opened(updates)
    model = nn.Linear(D, 1, bias=False)
    judge = Validation(model, torch.ones(2, D), torch.ones(2, 1), loss_fn=mse_loss)
    valuation = InfluenceValuation(judge)
    valuation.gradient = lambda *_: torch.from_numpy(-VECTOR)
    scores = valuation.score(
        a_round(
            torch.zeros(5, D, dtype=torch.float64),
            squared_norms=torch.from_numpy(masked_round.lengths**2),
            unseen=masked_round,
        )
    )
    shares = min_max(scores.values, scores.resolution).tolist()
    assert shares == pytest.approx(equal, abs=1e-2)


@pytest.mark.parametrize(("length", "is_said"), [(1e-4, True), (1e-2, False)])
def test_updates_that_the_fixed_point_rounds_by_much_are_said(length, is_said, caplog):
    """Each entry of 3,001 is rounded by 2**-28: 8e-8 in all, a thousandth of 8e-5."""
    summed(0.5 * length * UNIT, 0.5 * length)
    assert ("masking rounds the step" in caplog.text) == is_said


def test_who_hides_two_values_from_the_sketch_is_named_by_a_product():
    """The members that count are the last three: the first of them is the one."""

    def spoil(vectors):  # Half of the ring in two entries of one bucket: their sum is 0.
        vectors[2][:2] += np.uint64(2**63)

    masked_round = Parties(policy=OPEN.replace(sketch_share=0.01)).opened(np.ones((5, 3)), spoil)
    assert masked_round.untrue() == {}
    masked_round.keep_counted([2, 3, 4])
    # Of length 3/4, and odd in the last bit of the first entry alone.
    vector = torch.tensor([0.75 - 2.0**-24, 0.0, 0.0], dtype=torch.float64)
    with pytest.raises(MaskingError, match="larger than the update allows of node 102: its vector"):
        masked_round.products(vector)


def test_two_values_that_hide_from_the_sketch_do_not_get_through_the_step():
    def spoil(vectors):  # Half of the ring in two entries of one bucket: their sum is 0.
        vectors[0][:2] += np.uint64(2**63)

    masked_round = Parties(policy=OPEN.replace(sketch_share=0.01)).opened(np.ones((5, 3)), spoil)
    assert np.all(np.linalg.norm(masked_round.sketches, axis=1) <= 3)
    weights = np.array([2**22 + 1, 2**22 - 1, 2**22, 2**22, 0]) / 2**24  # The first is odd.
    with pytest.raises(MaskingError, match="a member's vector is not what its sketch says"):
        masked_round.summed(torch.from_numpy(weights))
