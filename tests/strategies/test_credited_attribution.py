"""Path attribution with bounded credit: rounds worked out by hand, momentum, going on."""

from __future__ import annotations

import pytest
import torch

from fedif_flower import PathAttribution
from fedif_flower.stages import FedAvgM
from fedif_flower.valuation.credit import CreditBounds
from tests.strategies.attributing import ROUNDING, attributed, fedavg, validation
from tests.strategies.lines import Movers

LONG = Movers([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])


def run(movers, rounds=1, *, stages=(), **bounds):
    def strategy(v, **base):
        return fedavg(v, stages=stages, **base)

    return attributed(strategy, movers, rounds, bounds=CreditBounds(**bounds))


@pytest.mark.parametrize(("rounds", "stages"), [(1, ()), (3, [FedAvgM(0.5, 0.5)])])
def test_an_update_three_times_as_long_is_credited_for_its_bound(rounds, stages):
    for found in run(LONG, rounds, stages=stages, length=1.5, borrowed=0, weight=0).rounds:
        one, two, long = found.clients
        assert [one.credited, two.credited] == [one.contribution, two.contribution]
        assert long.credited == pytest.approx(long.contribution / 2, rel=10 * ROUNDING)
        assert long.credit.length == pytest.approx(3.0, rel=ROUNDING)
        # What members contribute adds up as ever.
        assert found.attributed == pytest.approx(found.decrease, rel=100 * ROUNDING)


def test_without_bounds_each_is_credited_with_its_contribution():
    (found,) = run(LONG, length=0, borrowed=0, weight=0).rounds
    assert [c.credited for c in found.clients] == [c.contribution for c in found.clients]


def test_the_last_step_again_is_credited_with_nothing():
    # All move alike in the first round; in the second, the first two move across the last step.
    callback = run(Movers([[1.0, 0.2], [1.0, -0.2], [1.0, 0.0]]), 2, length=0, borrowed=1.5)
    first, second = callback.rounds
    assert all(c.credited == c.contribution for c in first.clients)
    # The third has nothing of its own beside the step (1, 0).
    assert second.clients[2].credited == pytest.approx(0.0, abs=1e-6)
    assert second.clients[2].contribution > 0.1
    assert second.clients[2].credit.borrowed == 99.0


def test_a_run_that_goes_on_credits_as_one_that_never_stopped():
    whole, half = run(LONG, 2, length=1.5), run(LONG, 1, length=1.5)
    state, lines = half.state_dict(1), half.lines(0, 1)
    again = PathAttribution(validation(), "trapezoid", bounds=CreditBounds(length=1.5))
    again.load_state_dict(state, lines, 1)
    assert again.rounds == half.rounds == whole.rounds[:1]
    assert str(again.state_dict(1)["bounds"]) == str(state["bounds"])
    (theirs,), (ours,) = state["past_steps"], again.state_dict(1)["past_steps"]
    assert torch.equal(theirs, ours)
    with pytest.raises(ValueError, match="its credit is bounded where this run's is not"):
        PathAttribution(validation(), "trapezoid").load_state_dict(state, lines, 1)
