from __future__ import annotations

import pytest
import torch

from fedif_flower.aggregators import CentredClipping, Flame, Median, TrimmedMean
from fedif_flower.errors import ConfigError
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import Aggregation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import Clip, LossBound
from fedif_flower.strategies import RobustRule, Setup
from tests.strategies.lines import Movers, column, play, point

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}
STEPS = [[1.0, 9.0], [2.0, -3.0], [7.0, 0.0], [8.0, 2.0], [100.0, -50.0]]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (RobustRule(Median(), **BASE), [7, 0]),
        (RobustRule(TrimmedMean(malicious_fraction=0.2), **BASE), [17 / 3, -1 / 3]),
        (RobustRule(TrimmedMean(malicious_fraction=0.9), **BASE), [7, 0]),
        (RobustRule(TrimmedMean(malicious_fraction=0.0), **BASE), [118 / 5, -42 / 5]),
        (RobustRule(CentredClipping(radius=1e6, iterations=1), **BASE), [118 / 5, -42 / 5]),
    ],
)
def test_the_parameters_move_by_the_rule(strategy, expected):
    params, (report,) = play(strategy, point(), Movers(STEPS))
    assert params.tolist() == pytest.approx(expected, rel=1e-5)
    assert all(weight != weight or weight is None for weight in column(report, "weight"))


def test_lengths_are_bounded_before_the_rule_sees_them():
    params, _ = play(
        RobustRule(Median(), stages=[Clip(1.0)], **BASE),
        point(),
        Movers([[3.0, 0.0], [4.0, 0.0], [90.0, 0.0]]),
    )
    assert params.tolist() == [4, 0]
    trimmed = RobustRule(TrimmedMean(malicious_fraction=0.0), stages=[Clip(1.0)], **BASE)
    params, _ = play(trimmed, point(), Movers([[3.0, 0.0], [4.0, 0.0], [90.0, 0.0]]))
    assert params.tolist() == pytest.approx([11 / 3, 0])


def test_flame_adds_little_noise_that_the_seed_decides():
    movers = Movers([[1.0, 1.0]] * 5)
    still, (report,) = play(RobustRule(Flame(noise=0.0), **BASE), point(), movers)
    assert still.tolist() == pytest.approx([1, 1])
    assert column(report, "weight") == pytest.approx([0.2] * 5)
    noisy, _ = play(RobustRule(Flame(noise=0.1), **BASE), point(), movers)
    again, _ = play(RobustRule(Flame(noise=0.1), **BASE), point(), movers)
    other, _ = play(
        RobustRule(Flame(noise=0.1), **BASE | {"setup": Setup(seed=1, device="cpu")}),
        point(),
        movers,
    )
    assert torch.equal(noisy, again)
    assert not torch.equal(noisy, other)
    assert 0 < float((noisy - still).norm()) < 5 * 0.1 * 2**0.5 * 2**0.5


def test_a_rule_that_makes_a_step_leaves_none_to_choose():
    with pytest.raises(ConfigError, match=r"LossBound.*Median\(\) leaves no step to choose"):
        RobustRule(Median(), stages=[LossBound()], **BASE)


def test_a_rule_of_ones_own_is_a_function():
    """A step [d] needs nothing else; weights say that they are some."""

    def first(updates):
        return updates.client_updates[0]

    params, (report,) = play(RobustRule(first, **BASE), point(), Movers(STEPS))
    assert params.tolist() == [1, 9]
    assert report.clients[0].weight is None

    class Last:
        gives_weights = True

        def __call__(self, updates):
            return Aggregation(weights=torch.eye(updates.num_clients)[-1])

    params, (report,) = play(RobustRule(Last(), **BASE), point(), Movers(STEPS))
    assert params.tolist() == [100, -50]
    assert column(report, "weight") == [0, 0, 0, 0, 1]


def test_a_rule_that_returns_the_other_thing_fails_the_round():
    def weights(updates):
        return Aggregation(weights=torch.ones(updates.num_clients))

    strategy = RobustRule(weights, **BASE)
    strategy.start(LocalGrid(Movers(STEPS), len(STEPS)), model_arrays(point()), num_rounds=1)
    (report,) = strategy.history.rounds
    assert "it has to return a step [d]" in report.reason
