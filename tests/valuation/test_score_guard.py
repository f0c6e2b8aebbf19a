from __future__ import annotations

import pytest
import torch

from fedif_flower.errors import ValuationError
from fedif_flower.valuation.score_guard import ScoreGuard, anchored_scores

IDS = (4, 7, 9)
EQUAL = torch.ones(3)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_anchored_nothing_earns_nothing():
    # Min-max would give the zero update 0.5.
    assert anchored_scores(vector(4, 0, -4)).tolist() == [1, 0, 0]
    assert anchored_scores(vector(4, 1, -9)).tolist() == [1, 0.25, 0]
    assert anchored_scores(vector(-1, -2)).tolist() == [0, 0]
    assert anchored_scores(vector(0, 0)).tolist() == [0, 0]
    assert anchored_scores(vector()).tolist() == []
    # Rounding is nothing as well.
    assert anchored_scores(vector(1e-9, -1), resolution=1e-8).tolist() == [0, 0]


def test_a_short_update_counts_as_much_less_as_it_is_shorter():
    guard = ScoreGuard(least_length=0.5)
    # Lengths 8, 2, 0 and 10: the median of those that are not 0 is 8, the least length 4.
    found = guard.normalized(torch.ones(4), vector(1, 1, 1, 0.5), vector(64, 4, 0, 100))
    assert found.tolist() == [1, 0.5, 0, 0.5]
    nothing = guard.normalized(torch.ones(2), vector(1, 1), vector(0, 0))
    assert nothing.tolist() == [0, 0]


def test_without_options_scores_and_weights_stay():
    guard = ScoreGuard()
    normalized, weights = vector(1, 0, 0.5), vector(0.5, 0.25, 0.25)
    assert guard.normalized(vector(3, -1, 1), normalized, EQUAL) is normalized
    assert guard.weights(weights, IDS, vector(-1, -1, -1)) is weights


def test_harm_is_remembered_longer_than_a_good_round():
    guard, weights = ScoreGuard(harm_memory=4), vector(0.5, 0.25, 0.25)
    # One harmful round of four: half of the weight.
    assert guard.weights(weights, IDS, vector(1, -1, 1)).tolist() == pytest.approx(
        [4 / 7, 1 / 7, 2 / 7]
    )
    # A second: none.
    assert guard.weights(weights, IDS, vector(1, -1, 1)).tolist() == pytest.approx(
        [2 / 3, 0, 1 / 3]
    )
    for _ in range(2):  # Good ones, but the memory still holds both.
        assert guard.weights(weights, IDS, vector(1, 1, 1))[1] == 0
    # Then the first harmful round is forgotten, and then the second.
    assert guard.weights(weights, IDS, vector(1, 1, 1))[1] == pytest.approx(1 / 7)
    assert guard.weights(weights, IDS, vector(1, 1, 1)).tolist() == weights.tolist()


def test_where_all_did_harm_nobody_has_weight():
    guard = ScoreGuard(harm_memory=1)
    assert guard.weights(vector(0.5, 0.5), (1, 2), vector(-1, -2)).tolist() == [0, 0]


def test_a_resumed_guard_remembers():
    guard, weights = ScoreGuard(harm_memory=3), vector(0.5, 0.25, 0.25)
    guard.weights(weights, IDS, vector(-1, -1, 1))
    other = ScoreGuard(harm_memory=3)
    other.load_state_dict(guard.state_dict())
    scores = vector(1, -1, 1)
    assert torch.equal(other.weights(weights, IDS, scores), guard.weights(weights, IDS, scores))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"least_length": -1.0}, "least_length is -1.0; allowed: finite, >= 0"),
        ({"least_length": float("inf")}, "least_length is inf"),
        ({"harm_memory": -1}, "harm_memory is -1; allowed: >= 0"),
    ],
)
def test_what_is_out_of_range_is_named(bad, message):
    with pytest.raises(ValuationError, match=message):
        ScoreGuard(**bad)
