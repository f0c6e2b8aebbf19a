"""Rounds that close before all have answered, and replies that come late: worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from torch import nn

from fedif_flower import FedAvg, Krum, PathAttribution
from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import Scaffold
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import model_arrays
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.round import Aggregation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.nodes import identify_clients
from fedif_flower.stages import Bucketing
from fedif_flower.strategies import Pace, RobustRule, Setup
from tests.clocked_grid import ClockedGrid
from tests.server.hostile import Clients, reply_of, step_reply
from tests.strategies.lines import ROUNDING, Movers, point, validation

STEPS = [[1.0, 0.0], [0.0, 1.0], [8.0, 8.0]]
SECONDS = [1.0, 2.0, 9.5]
PATIENT = Pace(quorum=2, late_rounds=9)


def run(pace: Pace, rounds: int, clients=None, callbacks=(), timeout=3600.0, of=FedAvg, **base):
    """Return the model, the reports and the grid of a run with three nodes."""
    grid = ClockedGrid(clients or Movers(STEPS), 3, SECONDS.__getitem__)
    setup = Setup(device="cpu", pace=pace, identify=identify_clients)
    strategy = of(fraction_evaluate=0.0, callbacks=callbacks, setup=setup, **base)
    result = strategy.start(grid, model_arrays(point()), rounds, timeout)
    (weight,) = result.arrays.to_torch_state_dict().values()
    return weight.flatten().tolist(), strategy.history.rounds, grid


def story(reports) -> str:
    """Return what became of the three in each round: accepted, late, refused, not asked."""
    letters = [{c.node.partition_id: c.status[0] for c in report.clients} for report in reports]
    return " ".join("".join(of.get(p, "-") for p in range(3)) for of in letters)


class Nonsense(Movers):
    """Partition 0, the fastest, sends NaN."""

    def train(self, message, partition_id):
        reply = super().train(message, partition_id)
        return reply if partition_id else step_reply(message, math.nan)


@pytest.mark.parametrize(
    ("pace", "more", "expected", "seconds"),
    [
        # A round closes with its quorum. The slow one is not paused: it is asked every time.
        (Pace(quorum=2), {}, "aal aal aal aal aal aal", 12.0),
        (Pace(quorum=0.3, grace=1.5), {}, "aal", 2.5),
        # Nobody closes a round by nonsense.
        (Pace(quorum=2), {"clients": Nonsense(STEPS)}, "raa", 9.5),
        # Rounds of the others end at 2, 4, 6, 8; then the slow one is second, and begins anew at
        # 9.5. Partition 1, asked at 8, answers at 10, partition 0 at 10.5.
        (PATIENT, {}, "aal aa- aa- aa- ala aal", 10.5),
        # Beyond its rounds a late reply is lost, and its member asked anew.
        (Pace(quorum=2, late_rounds=1), {}, "aal aa- aal", 6.0),
        # Once its time is over, those that came make a step, though they are fewer.
        (Pace(quorum=3, late_rounds=9), {"timeout": 3.0}, "aal", 3.0),
        # Where nobody is free the late ones are waited for.
        (Pace(late_rounds=9), {"timeout": 0.75}, "lll a--", 1.0),
    ],
)
def test_when_a_round_closes_and_what_becomes_of_who_is_slower(pace, more, expected, seconds):
    _, reports, grid = run(pace, len(expected.split()), **more)
    assert story(reports) == expected
    assert grid.now == seconds


@pytest.mark.parametrize(
    ("pace", "accuracies"),
    [(Pace(quorum=2), [0.5, 0.5]), (PATIENT, [0.5, 0.5, 0.5, 0.5, 1.0])],
)
def test_who_still_trains_does_not_evaluate(pace, accuracies):
    """Partition p measures p. The last is late, but in round 5 with late replies it is the second.

    Otherwise evaluation would wait for the training that the round did not wait for.
    """
    grid = ClockedGrid(Movers(STEPS), 3, SECONDS.__getitem__)
    strategy = FedAvg(setup=Setup(device="cpu", pace=pace, identify=identify_clients))
    result = strategy.start(grid, model_arrays(point()), len(accuracies))
    measured = result.evaluate_metrics_clientapp
    assert [measured[t]["accuracy"] for t in sorted(measured)] == accuracies


class Wrapping(FedAvg):
    """Leaves the replies to the strategy."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies)


class Looking(FedAvg):
    """Goes through all replies first."""

    def aggregate_train(self, server_round, replies):
        assert len(list(replies)) == 3
        return super().aggregate_train(server_round, replies)


def test_a_subclass_that_leaves_the_replies_to_the_strategy_has_its_quorum(caplog):
    _, reports, grid = run(PATIENT, 6, of=Wrapping)
    assert story(reports) == "aal aa- aa- aa- ala aal"
    assert grid.now == 10.5
    assert "whatever the quorum" not in caplog.text


def test_a_subclass_that_goes_through_the_replies_first_waits_for_all_and_is_told(caplog):
    _, reports, grid = run(PATIENT, 2, of=Looking)
    assert story(reports) == "aaa aaa"
    assert grid.now == 19.0
    words = "round 2: Looking.aggregate_train goes through the replies before it hands them on"
    assert words in caplog.text


class Pausing(FedAvg):
    """Draws nobody in round 2."""

    def select(self, nodes, server_round):
        return [] if server_round == 2 else list(nodes)


def test_a_round_that_draws_nobody_and_has_late_replies_is_not_called_empty(caplog):
    """Of round 1 a reply is still to come: round 2 makes a model of it."""
    _, reports, _ = run(PATIENT, 2, of=Pausing)
    assert [report.status for report in reports] == ["advanced", "advanced"]
    assert "draws nobody" not in caplog.text


def test_a_late_reply_counts_when_it_comes_for_less_against_its_own_model():
    attribution = PathAttribution(validation(), "simpson")
    weight, reports, _ = run(PATIENT, 5, callbacks=[attribution])
    late = next(c for c in reports[4].clients if c.node.partition_id == 2)
    assert (late.note, late.asked_in) == ("trained on the model of round 1", 1)
    assert {client.asked_in for client in reports[4].clients if client is not late} == {None}
    assert reports[4].counts == {"accepted": 2, "rejected": 0, "failed": 0, "late": 1}
    shortened = 8.0 / math.sqrt(5.0) / 2
    assert weight == pytest.approx([2.0 + 0.5 + shortened, 2.0 + shortened], rel=1e-6)
    gained = attribution.rounds[0].loss_before - attribution.rounds[-1].loss_after
    assert sum(attribution.contributions.values()) == pytest.approx(gained, rel=10 * ROUNDING)
    assert attribution.rounds[4].clients[-1].contribution != 0.0


class Variances(Clients):
    """Partition p sends ``variances[p]`` for what its layer has seen, whatever it was sent."""

    variances = (0.25, 0.25, 0.65)

    def train(self, message: Message, partition_id: int) -> Message:
        arrays = {
            name: pack_array(
                np.full_like(array.numpy(), self.variances[partition_id] if "var" in name else 0)
            )
            for name, array in message.content.array_records["arrays"].items()
        }
        return reply_of(message, arrays, {"num-examples": 10})


@pytest.mark.parametrize(
    ("rounds", "variance"),
    [
        (1, 0.25),
        # The second says so as well: the model is there already.
        (2, 0.25),
        # The third was asked two rounds ago, when the variance was 1.
        (3, 0.25 + (0.65 - 0.25) / math.sqrt(3.0)),
    ],
)
def test_buffers_move_towards_those_that_come_late_and_not_by_an_old_change(rounds, variance):
    pace = Pace(quorum=1, late_rounds=9)
    grid = ClockedGrid(Variances(), 3, [1.0, 1.5, 1.7].__getitem__)
    setup = Setup(device="cpu", pace=pace, identify=identify_clients)
    strategy = FedAvg(fraction_evaluate=0.0, setup=setup)
    result = strategy.start(grid, model_arrays(nn.BatchNorm1d(1)), rounds)
    assert result.arrays["running_var"].numpy().item() == pytest.approx(variance, rel=1e-6)


@pytest.mark.parametrize(
    ("quorum", "asked", "replies"),
    [(0.07, 100, 7), (0.14, 50, 7), (0.56, 25, 14), (0.5, 25, 13), (0.01, 3, 1), (2, 1, 1)],
)
def test_a_quorum_is_a_share_of_those_asked_and_no_rounding_error(quorum, asked, replies):
    assert Pace(quorum=quorum).closing(asked, ()).quorum == replies


class Broken(Movers):
    """The last partition, which is slow, answers with an error."""

    def train(self, message, partition_id):
        if partition_id == len(self.steps) - 1:
            raise RuntimeError("out of memory")
        return super().train(message, partition_id)


def test_an_error_that_comes_late_is_the_member_s_and_not_the_newest_model_s():
    """The first asks for a second each; the other's errors come in rounds 4 and 8."""
    grid = ClockedGrid(Broken(STEPS[:2]), 2, [1.0, 3.5].__getitem__)
    setup = Setup(device="cpu", pace=Pace(quorum=1, late_rounds=9), identify=identify_clients)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, callbacks=(), setup=setup)
    result = strategy.start(grid, model_arrays(point()), num_rounds=8)
    reports = strategy.history.rounds
    assert [report.status for report in reports] == ["advanced"] * 8
    assert result.arrays["weight"].numpy().flatten().tolist() == [8.0, 0.0]
    assert story(reports) == "al- a-- a-- af- al- a-- a-- af-"
    # One of two is asked in round 8: after two errors in a row its pause is a turn of two rounds.
    [(errors, last_paused)] = strategy.roster.failures.state_dict()["erring"].values()
    assert (errors, last_paused) == (2, 10)


class CannotBear(Movers):
    """All but the last raise an error on a model that has moved."""

    def train(self, message, partition_id):
        (weight,) = message.content.array_records["arrays"].values()
        if partition_id < 2 and weight.numpy().any():
            raise RuntimeError("not this model")
        return super().train(message, partition_id)


def test_a_late_reply_to_a_model_that_was_taken_back_does_not_count():
    """The last trains for 4.5 s on the model that round 2 takes back, and is asked anew."""
    of_last = iter([1.0, 4.5, 9.0])
    seconds = {0: 1.0, 1: 2.0}
    grid = ClockedGrid(CannotBear(STEPS), 3, lambda p: seconds.get(p) or next(of_last))
    setup = Setup(device="cpu", pace=Pace(late_rounds=9), identify=identify_clients)
    strategy = FedAvg(fraction_evaluate=0.0, setup=setup)
    result = strategy.start(grid, model_arrays(point()), num_rounds=3, timeout=3.0)
    assert story(strategy.history.rounds) == "aaa ffl aal"
    # From the first model again, by the mean of the first two.
    assert result.arrays["weight"].numpy().flatten().tolist() == [0.5, 0.5]


class LateNonsense(Movers):
    """The last partition sends NaN."""

    def train(self, message, partition_id):
        reply = super().train(message, partition_id)
        return step_reply(message, math.nan) if partition_id == len(self.steps) - 1 else reply


def test_nonsense_that_comes_late_does_not_blame_the_newest_model():
    """The first is slow in round 4, in which the other's nonsense of round 1 is all that comes."""
    of_first = iter([1.0, 1.0, 1.0, 9.0])
    grid = ClockedGrid(LateNonsense(STEPS[:2]), 2, lambda p: 3.5 if p else next(of_first))
    setup = Setup(device="cpu", pace=Pace(quorum=1, late_rounds=9), identify=identify_clients)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, callbacks=(), setup=setup)
    result = strategy.start(grid, model_arrays(point()), num_rounds=4, timeout=2.0)
    reports = strategy.history.rounds
    assert story(reports) == "al- a-- a-- lr-"
    assert reports[3].reason == "0 valid replies, 1 needed"
    # Rounds 1 to 3 have moved the model by 1 each.
    assert result.arrays["weight"].numpy().flatten().tolist() == [3.0, 0.0]


class Last:
    """Chooses the last member's model."""

    gives_weights = chooses_one = True

    def __call__(self, updates):
        return Aggregation(weights=torch.eye(updates.num_clients)[-1])


def test_of_a_late_reply_a_rule_that_chooses_one_takes_the_shortened_update():
    weight, reports, _ = run(PATIENT, 5, of=RobustRule, rule=Last())
    assert story(reports) == "aal aa- aa- aa- ala"
    # Four steps of partition 1, then partition 2's of round 1.
    shortened = 8.0 / math.sqrt(5.0)
    assert weight == pytest.approx([shortened, 4.0 + shortened], rel=10 * ROUNDING)


def test_what_was_late_when_a_run_ended_is_not_awaited_in_the_next():
    setup = Setup(device="cpu", pace=PATIENT, identify=identify_clients)
    strategy, model = FedAvg(fraction_evaluate=0.0, setup=setup), model_arrays(point())
    for _ in range(2):
        grid = ClockedGrid(Movers(STEPS), 3, SECONDS.__getitem__)
        model = strategy.start(grid, model, 5).arrays
        assert story(strategy.history.rounds[-5:]) == "aal aa- aa- aa- ala"


@pytest.mark.parametrize(("ask_more", "asked"), [(1.0, 1), (2.0, 2)])
def test_more_are_asked_than_the_fraction_says(ask_more, asked):
    pace = Pace(ask_more=ask_more)
    _, (report,), _ = run(pace, 1, fraction_train=1 / 3, min_train_nodes=1)
    assert len(report.clients) == asked


def test_a_round_asks_somebody_however_small_the_share():
    _, (report,), _ = run(Pace(), 1, fraction_train=1e-9, min_train_nodes=0)
    assert len(report.clients) == 1


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


BY_TWO = r"at most 2, with which a round closes by quorum = 2$"


@pytest.mark.parametrize(
    ("pace", "settings", "words"),
    [
        (Pace(quorum=2), {"min_valid_replies": 3}, "min_valid_replies = 3; allowed: " + BY_TWO),
        (
            Pace(quorum=0.3),
            {"min_valid_replies": 2},
            "min_valid_replies = 2; allowed: at most 1, with which a round closes by quorum = 0.3",
        ),
        # What comes late counts for the quorum as well; within its grace nobody needs to answer.
        (PATIENT, {"min_valid_replies": 3}, BY_TWO),
        (Pace(quorum=2, grace=60.0), {"min_valid_replies": 3}, BY_TWO),
        (Pace(quorum=2), {"rule": Krum(num_selected=3)}, "Krum.num_selected = 3; .* " + BY_TWO),
        (
            Pace(quorum=2),
            {"rule": Krum(), "stages": [Bucketing(3)]},
            "Bucketing.size = 3; .* " + BY_TWO,
        ),
        # No more are drawn than there are, and no more can be late.
        (
            Pace(ask_more=3.0),
            {"rule": Krum(num_selected=4)},
            "at most 3, as many as fraction_train = 1, ask_more = 3 and min_train_nodes = 2 draw "
            "of 3 nodes",
        ),
        (
            Pace(late_rounds=9),
            {"rule": Krum(num_selected=4)},
            "Krum.num_selected = 4; allowed: at most 3, as many as there can be nodes",
        ),
    ],
)
def test_what_needs_more_replies_than_a_round_closes_with_is_refused(pace, settings, words):
    settings = dict(settings)
    needed = {"min_valid_replies": settings.pop("min_valid_replies", 1)}
    setup = Setup(device="cpu", pace=pace, identify=identify_clients, **needed)
    kind = RobustRule if "rule" in settings else FedAvg
    strategy = kind(fraction_evaluate=0.0, setup=setup, **settings)
    with pytest.raises(ConfigError, match=words):
        strategy.start(ClockedGrid(Movers(STEPS), 3, SECONDS.__getitem__), model_arrays(point()), 1)
    assert strategy.history.rounds == []


def test_a_quorum_of_the_fewest_valid_replies_will_do():
    setup = Setup(device="cpu", pace=Pace(quorum=2), identify=identify_clients, min_valid_replies=2)
    strategy = RobustRule(Krum(num_selected=2), fraction_evaluate=0.0, setup=setup)
    strategy.start(ClockedGrid(Movers(STEPS), 3, SECONDS.__getitem__), model_arrays(point()), 2)
    assert story(strategy.history.rounds) == "aal aal"


def test_a_quorum_below_the_fewest_valid_replies_is_refused_however_many_nodes_may_come():
    grid = ClockedGrid(Movers(STEPS), 3, SECONDS.__getitem__)
    grid.most_nodes = math.inf
    setup = Setup(pace=Pace(quorum=2), identify=identify_clients, min_valid_replies=3)
    with pytest.raises(ConfigError, match="min_valid_replies = 3; allowed: " + BY_TWO):
        FedAvg(setup=setup).start(grid, model_arrays(point()), num_rounds=1)


@pytest.mark.parametrize(
    ("pace", "num_drawn", "fewest", "most"),
    [
        (Pace(), 2, 2, 2),
        (Pace(ask_more=2.0), 4, 4, 4),
        (Pace(ask_more=9.0), 8, 8, 8),
        (Pace(ask_more=2.0, quorum=3), 4, 3, 3),
        (Pace(ask_more=2.0, quorum=3, grace=9.0), 4, 3, 4),
        (Pace(quorum=0.5), 2, 1, 1),
        # Those of earlier rounds that are still at work may answer as well.
        (Pace(late_rounds=3), 2, 2, 8),
        (Pace(late_rounds=3, quorum=0.5), 2, 1, 4),
    ],
)
def test_how_many_of_eight_are_drawn_by_a_quarter_and_answer(pace, num_drawn, fewest, most):
    assert pace.num_drawn(8, 0.25, 1) == num_drawn
    assert pace.fewest_replies(num_drawn) == fewest
    assert pace.most_replies(num_drawn, 8) == most


@pytest.mark.parametrize(
    ("nodes", "fraction", "least", "ask_more", "without", "drawn"),
    [
        (10, 0.1, 1, 1.9, 1, 2),  # 19 * 0.1 is rounded down to 1.
        (20, 0.1, 1, 1.4, 2, 3),  # 2.8
        (10, 0.1, 2, 2.0, 2, 4),  # Twice what the least has made of 1.
        (4, 0.5, 3, 2.0, 3, 4),  # There are no more.
        (15, 0.1, 1, 1.9, 1, 2),  # 1.9
        (19, 0.1, 1, 2.0, 1, 3),  # Twice 1.9: more than twice 1.
        (100, 0.1, 1, 1.1, 10, 11),
        (100, 0.1, 1, 1.3, 10, 13),
    ],
)
def test_as_many_times_as_many_are_drawn_rounded_up(
    nodes, fraction, least, ask_more, without, drawn
):
    assert Pace().num_drawn(nodes, fraction, least) == without
    assert Pace(ask_more=ask_more).num_drawn(nodes, fraction, least) == drawn


@pytest.mark.parametrize(("quorum", "told"), [(5, 1), (3, 0), (0.9, 0)])
def test_a_quorum_of_more_than_are_at_work_is_told_once(quorum, told, caplog):
    _, reports, _ = run(Pace(quorum=quorum), rounds=3)
    assert story(reports) == "aaa aaa aaa"
    words = (
        "quorum = 5, but only 3 members are asked or at work: such a round waits for all of them"
    )
    assert caplog.messages.count(words) == told


def test_a_grace_that_ends_no_earlier_than_the_round_is_refused():
    pace = Pace(quorum=2, grace=60.0)
    with pytest.raises(ConfigError, match=r"^grace = 60.0; allowed: less than timeout = 60.0$"):
        run(pace, rounds=1, timeout=60.0)
    # The third comes after 9.5 seconds.
    for timeout in (60.5, None):
        assert story(run(pace, rounds=1, timeout=timeout)[1]) == "aaa"


class Dated(ClockedGrid):
    """Remembers for how long its messages are good."""

    def push_messages(self, messages):
        sent = list(messages)
        self.lives = {message.metadata.ttl for message in sent}
        return super().push_messages(sent)


HOUR = 3600.0
TEN_YEARS = 10 * 365 * 24 * HOUR


@pytest.mark.parametrize(
    ("pace", "timeout", "seconds"),
    [
        (Pace(), HOUR, 12 * HOUR),  # Flower's own default.
        (Pace(), 12 * HOUR, 13 * HOUR),
        (Pace(), 48 * HOUR, 49 * HOUR),
        (Pace(late_rounds=9), HOUR, 20 * HOUR),  # In ten rounds, with an hour more for each.
        (Pace(quorum=2, late_rounds=10**9), HOUR, TEN_YEARS),
        (Pace(), None, TEN_YEARS),
    ],
)
def test_flower_keeps_what_is_sent_for_as_long_as_replies_count(pace, timeout, seconds):
    grid = Dated(Movers(STEPS), 3, SECONDS.__getitem__)
    setup = Setup(device="cpu", pace=pace, identify=identify_clients)
    strategy = FedAvg(fraction_evaluate=0.0, setup=setup)
    strategy.start(grid, model_arrays(point()), num_rounds=1, timeout=timeout)
    assert grid.lives == {seconds}


def test_a_message_that_was_given_a_time_of_its_own_keeps_it():
    grid = Dated(Movers(STEPS), 3, SECONDS.__getitem__)
    message = Message(RecordDict(), 1000, "train", ttl=60.0)
    list(ScreenedGrid(grid).send_and_receive([message], timeout=HOUR))
    assert grid.lives == {60.0}
