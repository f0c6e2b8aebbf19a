"""Rounds that close before all have answered, and replies that come late: worked out by hand."""

from __future__ import annotations

import math

import pytest
from flwr.app import Message

from fedif_flower import FedAvg, PathAttribution
from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import Scaffold
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Pace, Setup
from fedif_flower.strategies.nodes import identify_clients
from tests.clocked_grid import ClockedGrid
from tests.strategies.hostile import step_reply
from tests.strategies.lines import ROUNDING, Movers, point, validation

STEPS = [[1.0, 0.0], [0.0, 1.0], [8.0, 8.0]]
SECONDS = [1.0, 2.0, 9.5]
PATIENT = Pace(quorum=2, late_rounds=9)
FIRST_TWO = {0: "accepted", 1: "accepted", 2: "late"}


def run(pace: Pace, rounds: int, clients=None, callbacks=(), timeout=3600.0, **base):
    """Return the model, the reports and the grid of a run with three nodes."""
    grid = ClockedGrid(clients or Movers(STEPS), 3, SECONDS.__getitem__)
    setup = Setup(device="cpu", pace=pace, identify=identify_clients)
    strategy = FedAvg(fraction_evaluate=0.0, callbacks=callbacks, setup=setup, **base)
    result = strategy.start(grid, model_arrays(point()), rounds, timeout)
    (weight,) = result.arrays.to_torch_state_dict().values()
    return weight.flatten().tolist(), strategy.history.rounds, grid


def statuses(report) -> dict[int, str]:
    return {client.node.partition_id: client.status for client in report.clients}


def test_a_round_closes_with_its_quorum_and_who_is_slower_is_late():
    weight, reports, grid = run(Pace(quorum=2), 1)
    assert weight == [0.5, 0.5]
    assert [statuses(report) for report in reports] == [FIRST_TWO]
    assert grid.now == 2.0
    assert reports[0].counts == {"accepted": 2, "rejected": 0, "failed": 0, "late": 1}
    # The slow one is not paused: it is asked every time.
    assert [statuses(report) for report in run(Pace(quorum=2), 6)[1]] == [FIRST_TWO] * 6


def test_a_share_and_grace():
    _, (report,), grid = run(Pace(quorum=0.3, grace=1.5), 1)
    assert statuses(report) == FIRST_TWO
    assert grid.now == 2.5


def test_a_late_reply_counts_when_it_comes_for_less_against_its_own_model():
    attribution = PathAttribution(validation(), "simpson")
    weight, reports, grid = run(PATIENT, 5, callbacks=[attribution])
    # Partition 2 is at work until 9.5. Rounds of the others end at 2, 4, 6, 8; then it is second.
    assert [statuses(report) for report in reports[1:4]] == [{0: "accepted", 1: "accepted"}] * 3
    assert statuses(reports[4]) == {0: "accepted", 1: "late", 2: "accepted"}
    late = next(c for c in reports[4].clients if c.node.partition_id == 2)
    assert late.note == "trained on the model of round 1"
    assert late.asked_in == 1
    assert {client.asked_in for client in reports[4].clients if client is not late} == {None}
    assert grid.now == 9.5
    shortened = 8.0 / math.sqrt(5.0) / 2
    assert weight == pytest.approx([2.0 + 0.5 + shortened, 2.0 + shortened], rel=1e-6)
    gained = attribution.rounds[0].loss_before - attribution.rounds[-1].loss_after
    assert sum(attribution.contributions.values()) == pytest.approx(gained, rel=10 * ROUNDING)
    assert attribution.rounds[4].clients[-1].contribution != 0.0


def test_whose_late_reply_came_is_asked_in_the_next_round():
    _, reports, grid = run(PATIENT, 6)
    # Partition 1, asked at 8, answers at 10, partition 0 at 10.5; partition 2 begins anew at 9.5.
    assert statuses(reports[5]) == FIRST_TWO
    assert grid.now == 10.5


def test_beyond_its_rounds_a_late_reply_is_lost_and_its_member_asked_anew():
    _, reports, _ = run(Pace(quorum=2, late_rounds=1), 3)
    without = {0: "accepted", 1: "accepted"}
    assert [statuses(report) for report in reports] == [FIRST_TWO, without, FIRST_TWO]


class Nonsense(Movers):
    """Partition 0, the fastest, sends NaN."""

    def __call__(self, message: Message, context) -> Message:
        if message.metadata.message_type == "train" and not context.node_config["partition-id"]:
            return step_reply(message, math.nan)
        return super().__call__(message, context)


def test_nobody_closes_a_round_by_nonsense():
    weight, (report,), grid = run(Pace(quorum=2), 1, Nonsense(STEPS))
    assert statuses(report) == {0: "refused", 1: "accepted", 2: "accepted"}
    assert grid.now == 9.5
    assert weight == [4.0, 4.5]


@pytest.mark.parametrize(("ask_more", "asked"), [(1.0, 1), (2.0, 2)])
def test_more_are_asked_than_the_fraction_says(ask_more, asked):
    pace = Pace(ask_more=ask_more)
    _, (report,), _ = run(pace, 1, fraction_train=1 / 3, min_train_nodes=1)
    assert len(report.clients) == asked


def test_where_nobody_is_free_the_late_ones_are_waited_for():
    _, reports, grid = run(Pace(late_rounds=9), 2, timeout=0.75)
    assert statuses(reports[0]) == {0: "late", 1: "late", 2: "late"}
    assert statuses(reports[1]) == {0: "accepted"}
    assert [report.failed for report in reports] == [True, False]
    assert grid.now == 1.0


@pytest.mark.parametrize(
    ("grid", "setup", "words"),
    [
        (LocalGrid(Movers(STEPS), 3), {}, "late_rounds = 9; allowed: 0 in a simulation"),
        (ClockedGrid(Movers(STEPS), 3, lambda _: 1), {"local_method": Scaffold()}, "more than a"),
    ],
)
def test_where_late_replies_cannot_be_used_the_setting_is_refused(grid, setup, words):
    strategy = FedAvg(setup=Setup(pace=PATIENT, **setup))
    with pytest.raises(ConfigError, match=words):
        strategy.start(grid, model_arrays(point()), num_rounds=1)
