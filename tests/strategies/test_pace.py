"""Rounds that close before all have answered, and replies that come late: worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from flwr.app import ArrayRecord, Message

from fedif_flower import FedAvg, PathAttribution
from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import Scaffold
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.clocked_grid import ClockedGrid
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Pace, Setup
from fedif_flower.strategies.nodes import identify_clients
from tests.strategies.attributing import ROUNDING, validation
from tests.strategies.lines import Movers, point

STEPS = [[1.0, 0.0], [0.0, 1.0], [8.0, 8.0]]
SECONDS = [1.0, 2.0, 9.5]
PATIENT = Pace(quorum=2, late_rounds=9)


def run(pace: Pace, rounds: int, clients=None, make=FedAvg, callbacks=(), timeout=3600.0):
    """Return the model, the reports and the grid of a run with three nodes."""
    grid = ClockedGrid(clients or Movers(STEPS), 3, SECONDS.__getitem__)
    strategy = make(
        fraction_evaluate=0.0,
        callbacks=callbacks,
        setup=Setup(device="cpu", pace=pace, identify=identify_clients),
    )
    result = strategy.start(grid, model_arrays(point()), rounds, timeout)
    (weight,) = result.arrays.to_torch_state_dict().values()
    return weight.flatten().tolist(), strategy.history.rounds, grid


def statuses(report) -> dict[int, str]:
    return {client.node.partition_id: client.status for client in report.clients}


def test_a_round_closes_with_its_quorum_and_who_is_slower_is_late():
    weight, (report,), grid = run(Pace(quorum=2), 1)
    assert weight == [0.5, 0.5]
    assert statuses(report) == {0: "accepted", 1: "accepted", 2: "late"}
    assert grid.now == 2.0
    assert (report.num_accepted, report.num_failed, report.num_late) == (2, 0, 1)


def test_a_share_and_grace():
    _, (report,), grid = run(Pace(quorum=0.3, grace=1.5), 1)
    assert statuses(report) == {0: "accepted", 1: "accepted", 2: "late"}
    assert grid.now == 2.5


def test_a_late_reply_counts_when_it_comes_for_less_against_its_own_model():
    weight, reports, grid = run(PATIENT, 5)
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


def test_whose_late_reply_came_is_asked_in_the_next_round():
    _, reports, grid = run(PATIENT, 6)
    # Partition 1, asked at 8, answers at 10, partition 0 at 10.5; partition 2 begins anew at 9.5.
    assert statuses(reports[5]) == {0: "accepted", 1: "accepted", 2: "late"}
    assert grid.now == 10.5


def test_beyond_its_rounds_a_late_reply_is_lost_and_its_member_asked_anew():
    _, reports, _ = run(Pace(quorum=2, late_rounds=1), 3)
    assert statuses(reports[0]) == {0: "accepted", 1: "accepted", 2: "late"}
    assert statuses(reports[1]) == {0: "accepted", 1: "accepted"}
    assert statuses(reports[2]) == {0: "accepted", 1: "accepted", 2: "late"}


def test_contributions_add_up_with_late_replies():
    attribution = PathAttribution(validation(), "simpson")
    run(PATIENT, 5, callbacks=[attribution])
    gained = attribution.rounds[0].loss_before - attribution.rounds[-1].loss_after
    assert sum(attribution.contributions.values()) == pytest.approx(gained, rel=10 * ROUNDING)
    late = attribution.rounds[4].clients[-1]
    assert late.contribution != 0.0


class Nonsense(Movers):
    """Partition 0, the fastest, sends NaN."""

    def __call__(self, message: Message, context) -> Message:
        reply = super().__call__(message, context)
        if message.metadata.message_type == "train" and not context.node_config["partition-id"]:
            (name,) = reply.content.array_records
            spoilt = {
                key: torch.full_like(value, torch.nan)
                for key, value in reply.content[name].to_torch_state_dict().items()
            }
            reply.content[name] = ArrayRecord(spoilt)
        return reply


def test_nobody_closes_a_round_by_nonsense():
    weight, (report,), grid = run(Pace(quorum=2), 1, Nonsense(STEPS))
    assert statuses(report) == {0: "refused", 1: "accepted", 2: "accepted"}
    assert grid.now == 9.5
    assert weight == [4.0, 4.5]


def test_more_are_asked_than_the_fraction_says():
    def half(**base):
        return FedAvg(1 / 3, min_train_nodes=1, **base)

    _, (report,), _ = run(Pace(), 1, make=half)
    assert len(report.clients) == 1
    _, (report,), _ = run(Pace(ask_more=2.0), 1, make=half)
    assert len(report.clients) == 2


def test_where_nobody_is_free_the_late_ones_are_waited_for():
    _, reports, grid = run(Pace(late_rounds=9), 2, timeout=0.75)
    assert statuses(reports[0]) == {0: "late", 1: "late", 2: "late"}
    assert statuses(reports[1]) == {0: "accepted"}
    assert [report.failed for report in reports] == [True, False]
    assert grid.now == 1.0


def test_a_slow_member_is_not_paused():
    _, reports, _ = run(Pace(quorum=2), 6)
    assert [statuses(report)[2] for report in reports] == ["late"] * 6


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
