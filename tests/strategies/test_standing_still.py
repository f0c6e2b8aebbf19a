"""Rounds whose accepted replies lead nowhere have a reason, and the run goes on."""

from __future__ import annotations

import pytest
from torch import nn

from fedif_flower import FedAvg, FedIF
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.stages import FedAvgM
from fedif_flower.strategies import Setup
from tests.strategies.attributing import validation
from tests.strategies.lines import Movers, play, point

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


class Nobody(FedAvg):
    """Gives nobody any weight."""

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return zeros, ``[m]``."""
        return Aggregation(weights=0 * updates.num_examples)


@pytest.mark.parametrize(
    ("strategy", "steps", "reason"),
    [
        (FedAvg(**BASE), [[0.0, 0.0], [0.0, 0.0]], "no accepted reply changes the model"),
        (Nobody(**BASE), [[1.0, 0.0], [0.0, 1.0]], "every accepted update has weight 0"),
        (FedAvg(**BASE), [[1.0, -2.0], [-1.0, 2.0]], "the accepted updates cancel"),
    ],
    ids=["zeros", "no weights", "opposites"],
)
def test_each_way_of_leading_nowhere_has_its_reason(strategy, steps, reason, caplog):
    params, reports = play(strategy, point(), Movers(steps), rounds=5)
    assert params.tolist() == [0.0, 0.0]
    status = "kept" if isinstance(strategy, Nobody) else "failed"
    assert [report.status for report in reports] == [status] * 5  # Beyond max_failed_rounds.
    assert all(report.reason.startswith(reason) for report in reports)
    assert [report.num_accepted for report in reports] == [2] * 5
    assert caplog.text.count(reason) == 5


def test_weights_and_scores_of_such_a_round_are_recorded():
    strategy = FedIF(validation(), **BASE)
    _, (report,) = play(strategy, point(), Movers([[0.0, 0.0], [0.0, 0.0]]))
    assert report.failed
    assert [client.score for client in report.clients] == [0.0, 0.0]


def test_a_model_that_momentum_moves_on_does_not_stand_still():
    strategy = FedAvg(stages=[FedAvgM(0.5, 0.5)], **BASE)
    led_to, _ = play(strategy, point(), Movers([[1.0, 0.0]] * 2))
    goes_on = point()
    nn.utils.vector_to_parameters(led_to, goes_on.parameters())
    params, (report,) = play(strategy, goes_on, Movers([[0.0, 0.0]] * 2))
    assert not report.failed
    assert led_to.tolist() == [0.5, 0.0]
    assert params.tolist() == [0.75, 0.0]
