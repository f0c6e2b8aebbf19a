from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import encode_weights
from fedif_flower.errors import KeeperError, MaskingError

POLICY = KeeperPolicy(least_members=3, largest_share=0.5, least_effective_members=2.5)
NAMES = ["ada", "ben", "cleo", "dora"]


def check(weights) -> None:
    POLICY.check_weights(encode_weights(np.array(weights))[0], NAMES)


@pytest.mark.parametrize(
    "weights", [[1, 1, 1, 1], [0, 1, 1, 1], [2.0, 1.0, 1.0, 0.0], [9, 4, 4, 4]]
)
def test_sums_that_hide_everyone(weights):
    check(weights)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ([0, 1, 0, 0], "least-members = 3; asked: 1 with weight"),
        ([1, 1, 0, 0], "least-members = 3; asked: 2 with weight"),
        # What is 0 once it is rounded has no weight.
        ([1, 1, 1e-9, 0], "least-members = 3; asked: 2 with weight"),
        ([1, 6, 1, 1], "largest-share = 0.5; asked: 0.667 for ben"),
        ([1, 1, 1e-3, 1e-3], "least-effective-members = 2.5; asked: 2"),
    ],
)
def test_sums_that_do_not_are_refused_with_the_policys_line(weights, reason):
    with pytest.raises(KeeperError, match="^the keeper refuses: " + re.escape(reason)):
        check(weights)


@pytest.mark.parametrize("ring", [[2**63, 2**63, 2**20, 2**20], [0, 0, 0, 0], [2**64 - 1, 1, 1, 1]])
def test_weights_beyond_the_ring_of_shares_are_refused(ring):
    with pytest.raises(KeeperError, match="weights are shares"):
        POLICY.check_weights(np.array(ring, np.uint64), NAMES)


@given(st.lists(st.floats(0, 1e3), min_size=4, max_size=4))
def test_what_is_allowed_has_the_cover_that_the_policy_states(weights):
    try:
        ring, _ = encode_weights(np.array(weights))
        POLICY.check_weights(ring, NAMES)
    except (MaskingError, KeeperError):
        return
    shares = np.array(weights) / sum(weights)
    assert max(shares) <= 0.5 + 1e-6
    assert 1 / sum(shares**2) >= 2.5 - 1e-5
    assert np.count_nonzero(shares > 2**-26) >= 3


@given(st.lists(st.floats(0, 1e3), min_size=4, max_size=4))
def test_weights_are_cut_to_what_is_allowed_where_three_have_any(weights):
    wanted = np.array(weights)
    found = POLICY.capped(wanted)
    assert found.sum() == pytest.approx(wanted.sum())
    assert np.all(np.diff(found[np.argsort(wanted)]) >= 0)
    if np.count_nonzero(wanted > 1e-12 * wanted.sum()) >= 3:
        check(found)


def share(*vectors) -> float:
    """Return the share of one parameter that the policy names where it refuses vectors."""
    numbers = np.array(vectors, float)
    with pytest.raises(KeeperError, match="in one parameter") as caught:
        KeeperPolicy(largest_entry=1e-9).check_vectors(numbers, np.linalg.norm(numbers, axis=1))
    return float(re.search(r"with (\S+) of it", str(caught.value))[1])


def test_what_a_combination_of_vectors_has_in_one_parameter_by_hand():
    assert share([3.0, 4.0, 0.0, 0.0]) == 0.64
    assert share([1.0, 1.0, 1.0, 1.0]) == 0.25
    assert share([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]) == 0.5
    assert share([0.0, 1.0, 0.0]) == 1.0


@given(st.integers(1, 4), st.integers(5, 60), st.integers(0, 2**32))
def test_no_combination_has_more_in_one_parameter(count, length, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, length)) * rng.exponential(size=length)
    # The bound is reached: by the projection of the place onto the span.
    projector = np.linalg.pinv(vectors) @ vectors
    assert share(*vectors) == pytest.approx(np.max(np.diag(projector)), rel=0.01)


def test_a_sketch_takes_its_share_of_the_parameters_at_most():
    sizes = {1_000_000: 256, 4_096: 256, 650: 40, 20: 1, 1: 1}
    assert {length: KeeperPolicy().sketch_for(length) for length in sizes} == sizes
