from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedif_flower.aggregators import Flame, Krum, Median
from fedif_flower.errors import ConfigError
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import Aggregation, ModelVectors
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import Clip, LossBound
from fedif_flower.strategies import RobustRule, Setup
from tests.rounds import a_round
from tests.strategies.lines import BASE, Movers, column, play, point

STEPS = [[1.0, 9.0], [2.0, -3.0], [7.0, 0.0], [8.0, 2.0], [100.0, -50.0]]
LONG = [[3.0, 0.0], [4.0, 0.0], [90.0, 0.0]]


@pytest.mark.parametrize(
    ("rule", "steps", "stages", "expected"),
    [
        (Median(), STEPS, (), [7, 0]),
        # Lengths are bounded before the rule sees them.
        (Median(), LONG, [Clip(1.0)], [4, 0]),
        # A rule of one's own is a function.
        (lambda updates: updates.client_updates[0], STEPS, (), [1, 9]),
    ],
)
def test_the_parameters_move_by_the_rule(rule, steps, stages, expected):
    params, (report,) = play(RobustRule(rule, stages=stages, **BASE), point(), Movers(steps))
    assert params.tolist() == pytest.approx(expected, rel=1e-5)
    assert column(report, "weight") == [None] * len(steps)


def test_flame_adds_little_noise_that_the_seed_decides():
    def of(noise: float, seed: int = 0):
        strategy = RobustRule(Flame(noise=noise), **BASE | {"setup": Setup(seed, "cpu")})
        params, (report,) = play(strategy, point(), Movers([[1.0, 1.0]] * 5))
        assert column(report, "weight") == pytest.approx([0.2] * 5)
        return params

    still, noisy = of(0.0), of(0.1)
    assert still.tolist() == pytest.approx([1, 1])
    assert torch.equal(noisy, of(0.1))
    assert not torch.equal(noisy, of(0.1, seed=1))
    assert 0 < float((noisy - still).norm()) < 5 * 0.1 * 2**0.5 * 2**0.5


def test_a_rule_that_makes_a_step_leaves_none_to_choose():
    with pytest.raises(ConfigError, match=r"LossBound.*Median\(\) leaves no step to choose"):
        RobustRule(Median(), stages=[LossBound()], **BASE)


class Last:
    gives_weights = True

    def __call__(self, updates):
        return Aggregation(weights=torch.eye(updates.num_clients)[-1])


def test_a_rule_of_ones_own_may_give_weights_and_says_so():
    params, (report,) = play(RobustRule(Last(), **BASE), point(), Movers(STEPS))
    assert params.tolist() == [100, -50]
    assert column(report, "weight") == [0, 0, 0, 0, 1]
    mute = RobustRule(Last().__call__, **BASE)  # Which does not say so.
    mute.start(LocalGrid(Movers(STEPS), 5), model_arrays(point()), num_rounds=1)
    assert "the rule has to return a step [d]" in mute.history.rounds[0].reason


def test_counts_of_steps_hide_attackers_where_krum_takes_them_along():
    # Two honest clients beside each other, two that send noise; these took equally long.
    updates, steps = torch.tensor([[0.0], [0.1], [-9.0], [8.0]]), (150, 210, 190, 190)
    found = a_round(
        updates,
        model=ModelVectors(torch.zeros(1), torch.zeros(0), {"steps": torch.tensor(500)}),
        counters=[{"steps": torch.tensor(500 + count)} for count in steps],
    )
    krum = Krum(malicious_fraction=0.5)
    assert krum(found).weights.tolist() == [1.0, 0.0, 0.0, 0.0]
    # One neighbour each: 60^2 + 0.1^2 and about 20^2 for the honest, 17^2 for the others.
    hidden = replace(krum, distances="state")(found)
    assert hidden.weights.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert hidden.scores.tolist()[2:] == [-289.0, -289.0]
