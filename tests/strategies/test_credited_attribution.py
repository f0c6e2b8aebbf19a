"""Path attribution with bounded credit: rounds worked out by hand, momentum, going on."""

from __future__ import annotations

import pytest
import torch

from fedif_flower import FedAvg, PathAttribution
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import FedAvgM
from fedif_flower.strategies import Setup
from fedif_flower.strategies.attributed import round_from
from fedif_flower.valuation.credit import CreditBounds
from tests.strategies.attributing import ROUNDING, validation
from tests.strategies.lines import Movers, point

LONG = [[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]]


def run(movers, rounds=1, *, momentum=0.0, **bounds):
    held_out = validation()
    callback = PathAttribution(held_out, "trapezoid", bounds=CreditBounds(**bounds))
    strategy = FedAvg(
        callbacks=[callback],
        fraction_evaluate=0.0,
        stages=[FedAvgM(momentum, 1 - momentum)] if momentum else (),
        setup=Setup(trainable_keys=held_out.parameter_names, device="cpu"),
    )
    strategy.start(LocalGrid(movers, 3), model_arrays(point()), num_rounds=rounds)
    return callback


def test_an_update_three_times_as_long_is_credited_for_its_bound():
    (found,) = run(Movers(LONG), length=1.5, borrowed=0, weight=0).rounds
    one, two, long = found.clients
    assert [one.credited, two.credited] == [one.contribution, two.contribution]
    assert long.credited == pytest.approx(long.contribution / 2, rel=ROUNDING)
    assert long.credit.length == pytest.approx(3.0, rel=ROUNDING)
    # What members contribute adds up as ever.
    assert found.attributed == pytest.approx(found.decrease, rel=ROUNDING)


def test_without_bounds_each_is_credited_with_its_contribution():
    (found,) = run(Movers(LONG), length=0, borrowed=0, weight=0).rounds
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


def test_what_momentum_carries_on_keeps_its_bound():
    callback = run(Movers(LONG), 3, momentum=0.5, length=1.5, borrowed=0, weight=0)
    for found in callback.rounds:
        long = found.clients[2]
        assert long.credited == pytest.approx(long.contribution / 2, rel=10 * ROUNDING)


def test_a_run_that_goes_on_credits_as_one_that_never_stopped():
    whole = run(Movers(LONG), 2, length=1.5)
    half = run(Movers(LONG), 1, length=1.5)
    state, lines = half.state_dict(1), half.lines(0, 1)
    again = PathAttribution(validation(), "trapezoid", bounds=CreditBounds(length=1.5))
    again.load_state_dict(state, lines, 1)
    assert again.rounds == half.rounds == whole.rounds[:1]
    assert str(again.state_dict(1)["bounds"]) == str(state["bounds"])
    (theirs,), (ours,) = state["past_steps"], again.state_dict(1)["past_steps"]
    assert torch.equal(theirs, ours)
    assert [round_from(line) for line in whole.lines(0, 2)] == whole.rounds


def test_bounds_that_are_there_in_one_run_alone_are_refused():
    half = run(Movers(LONG), 1)
    unbounded = PathAttribution(validation(), "trapezoid")
    with pytest.raises(ValueError, match="its credit is bounded where this run's is not"):
        unbounded.load_state_dict(half.state_dict(1), half.lines(0, 1), 1)
