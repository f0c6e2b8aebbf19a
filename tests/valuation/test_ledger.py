from __future__ import annotations

import logging
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.valuation.ledger import ScoreLedger, min_max


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("scores", "normalized"),
    [
        ([1.0, 3.0, 2.0], [0.0, 1.0, 0.5]),
        ([2.0], [1.0]),
        ([-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]),
        ([-torch.finfo(torch.float64).max, torch.finfo(torch.float64).max], [0.0, 1.0]),
    ],
)
def test_min_max_by_hand(scores, normalized):
    assert min_max(vector(*scores)).tolist() == normalized


@given(st.floats(1e-30, 1e30), st.sampled_from([torch.float32, torch.float64]))
def test_min_max_does_not_stretch_rounding(scale, dtype):
    scores = torch.full((3,), scale, dtype=dtype)
    scores[1] = torch.nextafter(scores[1], scores[1] * 2)
    assert min_max(scores).tolist() == [1.0] * 3
    scores[2] *= 1 + 64 * torch.finfo(dtype).eps
    assert min_max(scores)[[0, 2]].tolist() == [0.0, 1.0]
    assert min_max(scores, resolution=scale).tolist() == [1.0] * 3


@pytest.mark.parametrize(("resolution", "normalized"), [(1.99, [0.0, 1.0]), (2.0, [1.0, 1.0])])
def test_min_max_takes_a_range_within_the_resolution_for_chance(resolution, normalized):
    assert min_max(vector(3.0, 5.0), resolution).tolist() == normalized


@pytest.mark.parametrize("scores", [(), (1.0, math.nan), (1.0, math.inf), (math.nan,)])
def test_min_max_of_no_scores_or_of_some_that_are_none_is_refused(scores):
    """A maximum of NaN exceeds nothing: every client would have the score 1."""
    with pytest.raises(ValuationError, match="to normalise"):
        min_max(vector(*scores))


def test_smooth_update_by_hand():
    ledger = ScoreLedger(0.3)
    # From 0: 0.7 * 0 + 0.3 * psi.
    assert ledger.update([7, 8], vector(1.0, 0.5)).tolist() == pytest.approx([0.3, 0.15])
    # Client 8 sits out and keeps its score.
    assert ledger.update([7], vector(0.0)).tolist() == pytest.approx([0.21])
    assert ledger.scores == pytest.approx({7: 0.21, 8: 0.15})


def test_bias_correction_by_hand():
    ledger = ScoreLedger(0.3, bias_correction=True)
    # One round: 0.3 psi / 0.3. Two: (0.7 * 0.3 * 1 + 0.3 * 0.5) / (1 - 0.49).
    assert ledger.update([7, 8], vector(1.0, 0.5)).tolist() == pytest.approx([1.0, 0.5])
    assert ledger.update([7], vector(0.5)).tolist() == pytest.approx([0.36 / 0.51])
    assert ledger.scores == pytest.approx({7: 0.36 / 0.51, 8: 0.5})
    assert ledger.weights([7, 9]).tolist() == [1.0, 0.0]


def test_without_smoothing_there_is_no_bias_to_correct():
    """Omega is the round's own Psi: nothing of the initial .5 is left in it to be taken out."""
    ledger = ScoreLedger(0.3, initial=0.5, smooth_update=False, bias_correction=True)
    assert ledger.update([7, 8], vector(1.0, 0.25)).tolist() == [1.0, 0.25]
    assert ledger.update([7], vector(0.75)).tolist() == [0.75]
    assert ledger.scores == {7: 0.75, 8: 0.25}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.05, 1))
def test_bias_corrected_scores_are_means_and_survive_a_checkpoint(scores, gamma):
    ledger = ScoreLedger(gamma, initial=0.5, bias_correction=True)
    for score in scores:
        ledger.update([3], vector(score))
    assert min(scores) - 1e-9 <= ledger.scores[3] <= max(scores) + 1e-9
    ledger.accumulate([3, 4], vector(1.0, -2.0))
    ledger.accumulate([4], vector(0.5))
    again = ScoreLedger(gamma, bias_correction=True)
    again.load_state_dict(ledger.state_dict())
    assert again.scores == ledger.scores
    assert again.accumulative_influence == {3: 1.0, 4: -1.5}


def test_weights_by_hand(caplog):
    ledger = ScoreLedger(1.0)
    with caplog.at_level(logging.WARNING):
        assert ledger.weights([4]).tolist() == [1.0]
        assert caplog.text == ""
        assert ledger.weights([4, 5]).tolist() == [0.5, 0.5]
    assert "uniform" in caplog.text
    ledger.update([1, 2, 3], vector(1.0, 3.0, -2.0))
    assert ledger.weights([1, 2, 3]).tolist() == [0.25, 0.75, 0.0]


def test_population_weights_by_hand():
    ledger = ScoreLedger(1.0, initial=0.5)
    ledger.update([1, 2, 3], vector(0.2, 0.6, 0.2))
    # a_i = Omega_i / sum over K * (K / m) with K = 4, m = 2; client 4 was never seen:
    # sum = 1 + 0.5.
    assert ledger.population_weights([1, 2], 4).tolist() == pytest.approx([0.4 / 1.5, 1.2 / 1.5])
    # By the chance of a member, where each comes by itself: 0.2 / 1.5 / 0.1.
    own_chance = ledger.population_weights([1, 2], 4, chance=0.1).tolist()
    assert own_chance == pytest.approx([2 / 1.5, 6 / 1.5])
    # Three were seen where two were announced: K = 3, nobody is unseen, 0.2 / 1 * 3 / 2.
    assert ledger.population_weights([1, 2], 2).tolist() == pytest.approx([0.3, 0.9])


def test_from_zero_an_unseen_client_counts_as_the_mean_of_those_seen():
    ledger = ScoreLedger(0.5)
    # Two of K = 20 in round 1: Omega = 0.5, 0.25, mean 0.375, sum over K = 7.5.
    ledger.update([1, 2], vector(1.0, 0.5))
    # 0.5 / 7.5 * 20 / 2: without the unseen the sum would be 10.
    assert ledger.population_weights([1, 2], 20).tolist() == pytest.approx([2 / 3, 1 / 3])
    # By a chance of 0.2: 0.5 / 7.5 / 0.2.
    by_chance = ledger.population_weights([1, 2], 20, chance=0.2).tolist()
    assert by_chance == pytest.approx([1 / 3, 1 / 6])
    # Round 2: client 1 has 0.75, client 3 -0.25, which counts as 0; sum over K = 1 / 3 * 20.
    ledger.update([1, 3], vector(1.0, -0.5))
    assert ledger.population_weights([1, 3], 20).tolist() == pytest.approx([1.125, 0.0])
    # Everybody was seen: 0.75 / 1 * 3 / 2.
    assert ledger.population_weights([1, 3], 3).tolist() == pytest.approx([1.125, 0.0])
    # More were seen than there were at the start: K is 3 all the same.
    assert ledger.population_weights([1, 3], 2).tolist() == pytest.approx([1.125, 0.0])
    assert ledger.population_weights([3, 4], 20).tolist() == [0.5, 0.5]


def test_what_is_wrong_is_named():
    with pytest.raises(ConfigError, match=r"gamma = 0\.0; allowed: a number > 0 and <= 1"):
        ScoreLedger(0.0)
    ledger = ScoreLedger(0.3)
    with pytest.raises(ValuationError, match="client 9 has score nan"):
        ledger.update([8, 9], vector(1.0, float("nan")))
    assert ledger.scores == {}


def test_a_printed_ledger_is_its_scores_the_highest_first():
    ledger = ScoreLedger(0.5)
    assert str(ledger) == "no weight scores yet"
    ledger.update([7, 1009, 3, 4], vector(0.25, 1.0, -0.5, 0.25))
    assert str(ledger) == "1009 0.5000\n4 0.1250\n7 0.1250\n3 -0.2500"
    assert repr(ledger).startswith("ScoreLedger(gamma=0.5")
    ledger.update(list(range(150)), vector(*[0.0] * 150))
    assert len(str(ledger).splitlines()) == 101
    assert str(ledger).endswith("\nand 51 more, at most 0.0000")
