from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import studentized_range, t

from fedif_consortium.statement.account import decisive_row, settle
from fedif_consortium.statement.bundle import account_json, make_statement
from fedif_consortium.statement.consistency import require_consistent
from fedif_consortium.statement.luck import Between, Luck, groups, told_apart
from fedif_consortium.statement.member_account import RULES, MemberAccount, with_verdict
from fedif_consortium.statement.records import read_run
from fedif_consortium.statement.shares import gain_shares, share_out
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.runs import add_rounds, come_late, make_run
from tests.consortium.statement.signed_runs import altered, rewrite, without

NATS = st.floats(-10, 10, allow_nan=False)


def account(folder, contributions, cents=None, by="sum", ties="apart", from_round=1, **more):
    records = read_run(make_run(folder / "run", contributions, **more))
    return settle(records, cents, by, ties, from_round)


def by_name(settled):
    return {member.name: member for member in settled.members}


def test_a_run_worked_out_by_hand(tmp_path):
    rounds = [{0: 0.5, 1: 0.25, 2: -0.125}, {0: 0.5, 2: -0.125}]
    settled = account(tmp_path, rounds, 1000_00, remainder=0.0625, names={1: "hospital-2"})
    assert (settled.rounds, settled.loss_before, settled.loss_after) == (2, 2.0, 0.875)
    assert (settled.decrease, settled.attributed, settled.remainder) == (1.125, 1.0, 0.125)
    assert [(m.name, m.contribution, m.share, m.cents, m.taken_part) for m in settled.members] == [
        ("client 0", 1.0, 0.8, 800_00, 2),
        ("hospital-2", 0.25, 0.2, 200_00, 1),
        ("client 2", -0.25, 0.0, 0, 2),
    ]
    first, second, _ = settled.members
    assert (first.examples, first.weight_score) == (100.0, 0.5)
    # A third of 0.625, and half of 0.375.
    assert first.equal_part == pytest.approx(0.625 / 3 + 0.375 / 2)
    assert second.equal_part == pytest.approx(0.625 / 3)


def ends(run_dir):
    settled = json.loads(account_json(settle(read_run(run_dir))))
    return settled["loss_before"], settled["loss_after"], settled["decrease"]


def test_an_account_takes_no_earlier_loss_for_the_one_that_a_run_ended_with(tmp_path):
    """Its losses are 2.0, 1.25, 0.75 and none: it once ended at 0.75, after a fall of 1.25."""
    run_dir = make_run(tmp_path / "run", [{0: 0.75}, {0: 0.5}])
    add_rounds(run_dir, (3, 0.75, "nan", 0.0, 0.0, 0.0))
    assert ends(run_dir) == (2.0, None, None)
    add_rounds(run_dir, (4, "inf", 0.5, 0.0, 0.0, 0.0))
    assert ends(run_dir) == (2.0, 0.5, 1.5)


def test_a_run_that_never_had_a_finite_loss_has_none_at_its_ends(tmp_path):
    """It once began and ended at 0."""
    run_dir = make_run(tmp_path / "run", [{0: 0.0}])
    no_loss = altered({}, loss_before="nan", loss_after="nan")
    rewrite(RunFolder(run_dir).attributed_rounds, no_loss)
    assert ends(run_dir) == (None, None, None)
    assert "has no finite validation loss" in settle(read_run(run_dir)).unpaid


def test_what_lies_beyond_the_bounds_is_paid_to_nobody():
    # Contributions 6 and 2, of which 3 and 2 are credited: of 8 in all, 5 are paid.
    shares = gain_shares([3.0, 2.0], Fraction(8))
    assert shares == [Fraction(3, 8), Fraction(2, 8)]
    assert share_out(1000_00, [*shares, 1 - sum(shares)]) == [375_00, 250_00, 375_00]
    # Where some lost what others gained, credits are shared among those who have any.
    assert gain_shares([3.0, -9.0, 1.0], Fraction(-5)) == [Fraction(3, 4), 0, Fraction(1, 4)]


def test_two_members_that_cancel_take_nobodys_pay(tmp_path):
    # The pair gains 100 and loses 100; of the 100 it is credited with as much as the others.
    rounds = [{0: 1.0, 1: 1.0, 2: 100.0, 3: -100.0}]
    settled = account(tmp_path, rounds, 90_00, credited={2: 0.01})
    credited = {m.name: (m.credited, m.cents) for m in settled.members}
    paid = {f"client {i}": (1.0, 30_00) for i in range(3)}
    assert credited == paid | {"client 3": (-100.0, 0)}


def test_one_step_that_cannot_be_attributed_takes_nobodys_pay(tmp_path):
    # Round 3 throws the loss from 0.5 to 20.5, round 4 brings it back; both belong to nobody.
    rounds = [{0: 0.75, 1: 0.25}, {0: 0.25, 1: 0.25}, {1: -50.0}, {0: 15.0, 1: 5.0}, {0: 0.125}]
    settled = account(tmp_path, rounds, 100_00, remainders={3: 30.0})
    assert (settled.left_out, settled.unpaid, settled.remainder) == ((3, 4), "", 0.0)
    assert (settled.rounds, settled.last_round, settled.decrease) == (5, 5, 1.625)
    assert (settled.attributed, settled.left_out_decrease) == (1.625, 0.0)
    members = by_name(settled)
    assert members["client 0"].contribution == 1.125
    assert [m.cents for m in settled.members] == [69_23, 30_77]
    assert members["client 1"].taken_part == 4  # It did take part in what counts for nobody.
    # A loss that never comes back leaves all later rounds out: 1 of harm stays in the model.
    settled = account(tmp_path / "late", rounds[:4], 100_00, remainders={3: 30.0, 4: -1.0})
    assert (settled.left_out, settled.decrease) == ((3, 4), 0.5)
    assert (settled.attributed, settled.left_out_decrease) == (1.5, -1.0)


def test_a_late_reply_that_counted_is_none_that_did_not_count(tmp_path):
    """It has a line in the round that closed without it, and one in the round in which it came."""
    closed = {(4, 1): "no reply before the round closed"}
    rounds = [{0: 0.25}, {0: 0.25}, {0: 0.25, 1: 0.5}, {0: 0.25}]
    statuses = dict.fromkeys(closed, "late")
    run = make_run(tmp_path / "run", rounds, rejections=closed, statuses=statuses)
    come_late(run, 1, {3: 1})
    member = by_name(settle(read_run(run)))["client 1"]
    assert (member.taken_part, member.late) == (1, 1)
    assert member.refusals == (("no reply before the round closed", 1),)


def test_refusals_and_absence_are_told_apart(tmp_path):
    away = {(1, 1): "no reply before the deadline", (2, 1): "client error 2: out of memory"}
    refused = dict.fromkeys([(1, 2), (2, 2)], "array 'w' is not finite")
    rounds = [{0: 1.0}, {0: 1.0}, {0: 1.0, 1: 0.0}]
    statuses = {(1, 1): "away", (2, 1): "failed"}
    members = by_name(account(tmp_path, rounds, rejections=away | refused, statuses=statuses))
    absent = members["client 1"]
    nonsense = members["client 2"]
    assert (absent.asked, absent.taken_part, absent.refused, absent.away) == (3, 1, 0, 2)
    assert (nonsense.asked, nonsense.taken_part, nonsense.refused) == (2, 0, 2)
    assert nonsense.refusals == (("array 'w' is not finite", 2),)
    assert (nonsense.contribution, nonsense.verdict.level) == (0.0, "quarantine")
    # A request without a reply is a draw.
    assert (members["client 0"].per_draw, absent.per_draw) == (1.0, 0.0)


def test_a_round_that_decided_is_named_and_left_out_for_comparison(tmp_path):
    # Round 2 brought 2 of 3.
    rounds = [{0: 0.125, 1: 0.125}, {0: 2.5, 1: -0.5}, *[{0: 0.125, 1: 0.125}] * 3]
    settled = account(tmp_path, rounds)
    assert (settled.decisive_round, settled.decisive, settled.attributed) == (2, 2.0, 3.0)
    assert [member.other_rounds for member in settled.members] == [0.5, 0.5]
    # Half of it does not decide, nor do four rounds, or rounds that gained nothing.
    for attributed in ([0.5, *[0.125] * 4], [1.0, -3.0, 0.5, 0.5, 0.5], [1.0, 0, 0, 0], [0.0] * 9):
        assert decisive_row(attributed) is None


def test_rounds_before_the_first_that_counts_count_for_nothing(tmp_path):
    rounds = [{0: 2.0, 2: 1.0}, {0: 0.25, 1: 0.75}, {1: 0.5}]
    settled = account(tmp_path, rounds, 100_00, from_round=2, remainder=0.125)
    assert (settled.first_round, settled.last_round, settled.rounds) == (2, 3, 2)
    assert (settled.loss_before, settled.decrease, settled.remainder) == (-1.125, 1.75, 0.25)
    figures = [(m.contribution, m.cents) for m in settled.members]
    assert figures == [(1.25, 83_33), (0.25, 16_67), (0.0, 0)]
    # Half of round 2, and nothing of the first; who was in that alone is still told of.
    assert by_name(settled)["client 0"].equal_part == 0.5
    assert by_name(settled)["client 2"].asked == 0


def taken_back_run(folder, shift=0):
    """Write a run in which a round takes back the step of the one before; client 0 is bounded."""
    rounds = [{0: 0.5, 1: 0.5}] * shift + [{0: 1.0, 1: 1.0}, {0: -1.0, 1: -1.0}]
    rounds += [{0: 0.5, 1: 0.5}] * 5
    run_dir = make_run(folder / "run", rounds)
    for number, credited in ((shift + 1, "0.2"), (shift + 2, "-0.2")):
        where = {"round": str(number), "client_id": "0"}
        rewrite(RunFolder(run_dir).attribution, altered(where, credited=credited))
    records = read_run(run_dir)
    require_consistent(records)
    return records


@pytest.mark.parametrize(("from_round", "contribution"), [(1, 2.5), (3, 2.5), (4, 2.0)])
def test_a_step_and_its_way_back_both_count_or_neither(tmp_path, from_round, contribution):
    """What is left are five rounds of .5 each, or four: half of the budget for each member."""
    settled = settle(taken_back_run(tmp_path), 100_00, from_round=from_round)
    figures = [(m.contribution, m.credited, m.cents) for m in settled.members]
    assert figures == [(contribution, contribution, 50_00)] * 2


@pytest.mark.parametrize(("shift", "allowed"), [(0, "1 or 3"), (2, "3 or 5")])
def test_no_first_round_lies_between_a_step_and_its_way_back(tmp_path, shift, allowed):
    words = f"from-round = {shift + 2}: a step before it was taken back .* allowed: {allowed}$"
    with pytest.raises(ConfigError, match=words):
        settle(taken_back_run(tmp_path, shift), 100_00, from_round=shift + 2)


def test_the_last_round_may_take_a_step_back(tmp_path):
    records = read_run(make_run(tmp_path / "run", [{0: 1.0}, {0: 0.5}, {0: -0.5}]))
    with pytest.raises(ConfigError, match=r"from-round = 3: .* allowed: 2$"):
        settle(records, from_round=3)


def test_rounds_that_count_do_not_credit_more_than_they_gave(tmp_path):
    """Over the whole run the credit of 1.5 lies within what was given; from round 2 it does not."""
    run_dir = make_run(tmp_path / "run", [{0: 1.0, 1: 1.0}, {0: 0.5, 1: 0.5}])
    attribution = RunFolder(run_dir).attribution
    for number, credited in (("1", "0.25"), ("2", "1.25")):
        rewrite(attribution, altered({"round": number, "client_id": "0"}, credited=credited))
    records = read_run(run_dir)
    require_consistent(records)
    with pytest.raises(ConfigError, match=r"from-round = 2: .* client 0 is credited with more"):
        settle(records, from_round=2)


SPLIT = {
    "blocks": {0: [0.25, 0.75], 1: [1.5, -0.5]},
    "by_class": 2,
    "at_noise_ends": {0: [0.5, 2.0], 1: [0.5, 2.0]},
}


@pytest.mark.parametrize(
    ("column", "value", "split"),
    [
        # Client 0 gave 1: a quarter by the first block, half of it in the first class.
        ("contribution_block_0", "0.251", "block"),
        ("contribution_noise_low_block_1", "0.376", "block"),
        ("contribution_noise_high_block_1", "1.51", "block"),
        ("contribution_class_1", "0.52", "class"),
        ("contribution_class_1", "-0.5", "class"),
    ],
)
def test_contributions_by_class_and_block_add_up_to_a_member_s(tmp_path, column, value, split):
    run_dir = make_run(tmp_path / "run", [{0: 1.0, 1: 0.5}, {0: 1.0, 1: 0.5}], **SPLIT)
    require_consistent(read_run(run_dir))
    where = {"round": "2", "client_id": "0"}
    rewrite(RunFolder(run_dir).attribution, altered(where, **{column: value}))
    words = f"attribution.csv: in round 2 the contributions of client 0 by {split} do not add up"
    with pytest.raises(StatementError, match=words):
        require_consistent(read_run(run_dir))


@pytest.mark.parametrize(
    "column", ["contribution_class_0", "contribution_block_1", "contribution_noise_low_block_1"]
)
def test_a_gap_in_contributions_by_class_or_block_is_named(tmp_path, column):
    """It may be so small a part that the others add up."""
    run_dir = make_run(tmp_path / "run", [{0: 1.0, 1: 0.5}], **SPLIT)
    rewrite(RunFolder(run_dir).attribution, altered({"client_id": "1"}, **{column: ""}))
    with pytest.raises(ConfigError, match=f"line 3: {column} is empty, and others are not"):
        read_run(run_dir)


def test_contributions_by_class_and_block_are_rounded(tmp_path):
    """Blocks have six digits; a class's gradient is another sum than that of all examples."""
    run_dir = make_run(tmp_path / "run", [{0: 1 / 3, 1: 0.5}], **SPLIT)
    where = {"client_id": "0"}
    rounded = {"contribution_block_0": "0.0833333", "contribution_class_1": "0.16667"}
    rewrite(RunFolder(run_dir).attribution, altered(where, **rounded))
    require_consistent(read_run(run_dir))


def test_members_of_the_same_name_or_without_one_can_be_told_apart(tmp_path):
    more = {"names": {0: "clinic", 1: "clinic"}, "node_ids": {-1: 22}}
    settled = account(tmp_path, [{0: 1.0, 1: 0.5, 2: 0.5, -1: 0.5}], **more)
    assert set(by_name(settled)) == {"clinic (0)", "clinic (1)", "client 2", "node 22"}
    # An id behind a name makes a name that another member has.
    more = {"names": {0: "A", 1: "A", 2: "A (1)"}}
    settled = account(tmp_path / "ids", [{0: 1.0, 1: 0.5, 2: 0.5}], **more)
    assert set(by_name(settled)) == {"A (0)", "A (1) (1)", "A (1) (2)"}


@pytest.mark.parametrize(
    ("rounds", "remainder", "words"),
    [
        ([{0: 0.5}, {0: -0.5}], 0.0, "did not fall"),
        ([{0: 1.0, 1: 0.5}], -1.0, "the remainder is 200% of it"),
        ([{0: 0.25, 1: 0.25}], 0.75, "the remainder is 60% of it"),
    ],
)
def test_a_run_without_gain_or_whose_contributions_do_not_add_up_pays_nobody(
    rounds, remainder, words, tmp_path
):
    settled = account(tmp_path, rounds, 1000_00, remainder=remainder)
    assert words in settled.unpaid
    assert {(member.share, member.cents) for member in settled.members} == {(0.0, 0)}
    # Half of the fall leaves the shares.
    assert account(tmp_path / "half", [{0: 0.375}], 1000_00, remainder=0.375).unpaid == ""


@given(st.lists(NATS, min_size=1, max_size=30), st.integers(0, 10**9))
def test_amounts_add_up_to_the_budget_to_the_cent(contributions, cents):
    shares = gain_shares(contributions)
    paid = share_out(cents, shares)
    if any(value > 0 for value in contributions):
        assert sum(paid) == cents
        assert sum(shares) == 1
    else:
        assert sum(paid) == 0
    for value, share, amount in zip(contributions, shares, paid, strict=True):
        assert abs(amount - cents * share) < 1
        if value <= 0:
            assert (share, amount) == (0, 0)


def test_less_than_nothing_is_not_shared_out(tmp_path):
    run = make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}] * 5)
    with pytest.raises(ConfigError, match="budget_cents = -1000; allowed: 0 or more"):
        make_statement(run, Ed25519PrivateKey.generate(), budget_cents=-1000)


def test_the_cents_left_over_go_to_the_largest_fractions():
    thirds = [Fraction(1, 3)] * 3
    assert share_out(100, thirds) == [34, 33, 33]
    assert share_out(10, [Fraction(26, 100), Fraction(48, 100), Fraction(26, 100)]) == [3, 5, 2]


def test_intervals_are_about_the_held_out_set_where_all_took_part(tmp_path):
    # Sums 3 and 1. Without the first of two blocks, 2 * 2 = 4 and 2 * 0.75 = 1.5; without the
    # other, 2 and 0.5: deviations of 1 and 0.5, variances 1 and 0.25.
    blocks = {0: [1 / 3, 2 / 3], 1: [1 / 4, 3 / 4]}
    quantile = t.ppf(0.975, 1)
    settled = account(tmp_path, [{0: 0.5, 1: 0.25}, *[{0: 0.625, 1: 0.1875}] * 4], blocks=blocks)
    first, second = settled.members
    assert settled.about == "another held-out set of the same size"
    assert first.interval == pytest.approx((3 - quantile, 3 + quantile))
    assert second.interval == pytest.approx((1 - quantile / 2, 1 + quantile / 2))
    # Shares 3/4 and 1/4 of 4; in the first block d s = (1 - 3/4 * 5/4) / 4 = 1/64, a half counts.
    assert first.share == 0.75
    (of_first,), (of_second,) = first.share_intervals, second.share_intervals
    assert (of_first.low, of_first.high) == pytest.approx((0.75 - quantile / 32, 1.0))
    assert (of_second.low, of_second.high) == pytest.approx((0.0, 0.25 + quantile / 32))
    assert settled.widest_share == pytest.approx(quantile / 32)


def test_where_members_were_drawn_luck_is_told_apart_and_together(tmp_path):
    rounds = [{0: 1.0, 1: 0.5}, {0: 1.0}, {0: 0.5, 1: 0.5}, {0: 1.0}, {0: 0.75, 1: 0.25}]
    settled = account(tmp_path, rounds, blocks={0: [0.4, 0.6], 1: [0.5, 0.5]})
    assert settled.about == "another held-out set of the same size and another draw of members"
    values = np.array([[r.get(0, 0.0), r.get(1, 0.0)] for r in rounds])
    of_draw = t.ppf(0.975, 4) * values.std(axis=0, ddof=1) * math.sqrt(5)
    first, second = settled.members
    own = t.ppf(0.975, 1) * 4.25 * 0.2
    widths = [each.high - first.contribution for each in first.intervals]
    assert widths == pytest.approx([own, of_draw[0], math.hypot(own, of_draw[0])])
    assert [each.about for each in first.intervals] == [*settled.about.split(" and "), "both"]
    assert second.interval == pytest.approx((1.25 - of_draw[1], 1.25 + of_draw[1]))
    for member in settled.members:
        examples, draw, both = (each.high - each.low for each in member.share_intervals)
        assert both >= max(examples, draw) > 0


def test_shares_per_draw_are_of_means(tmp_path):
    rounds = [{0: 1.0, 1: 0.5}, {0: 1.0}, {0: 1.0, 1: 1.0}, {0: 1.0}, {0: 1.0, 2: 0.5}]
    more = {"names": {1: "often", 7: "never"}}
    settled = account(tmp_path, rounds, 90_00, "draw", **more)
    members = by_name(settled)
    assert (settled.is_drawn, settled.never_drawn) == (True, ("never",))
    assert [m.per_draw for m in settled.members] == [1.0, 0.75, 0.5]
    assert [m.cents for m in settled.members] == [40_00, 30_00, 20_00]
    # The standard error of .5 and 1; who was drawn once might have contributed nothing.
    half = t.ppf(0.975, 1) * 0.25
    assert members["often"].draw_intervals[0].high == pytest.approx(0.75 + half)
    assert members["client 2"].draw_intervals[0].low < 0
    by_sum = account(tmp_path, rounds, 70_00, **more)
    assert [m.cents for m in by_sum.members] == [50_00, 15_00, 5_00]


@pytest.mark.parametrize("names", [{}, {1002: "cyd"}])
def test_that_somebody_was_never_drawn_does_not_follow_from_the_names_that_are_said(
    tmp_path, names
):
    """Ties depend on it, and whom the operator names in a statement is bound by nothing."""
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}] * 5, node_ids={0: 1000, 1: 1001})
    here = {"round": 1, "partition_id": 2, "client_id": 1002, "presence": "there", "at": ""}
    RunFolder(run_dir).attendance.replace([here])
    settled = settle(read_run(run_dir, names))
    assert settled.is_drawn
    assert settled.never_drawn == (names.get(1002, "node 1002"),)


def late_account(folder, contributions, asked_in, **how):
    """Return the account of a run in which client 1's replies came late."""
    run_dir = make_run(folder / "run", contributions)
    come_late(run_dir, 1, asked_in)
    return settle(read_run(run_dir), 100_00, "draw", **how)


def test_a_draw_is_of_the_round_in_which_its_reply_counts(tmp_path):
    """Client 1 was asked in rounds 1, 3 and 5, and each reply counts a round later."""
    rounds = [{0: 0.1}, {0: 0.1, 1: 0.1}] * 3
    settled = late_account(tmp_path, rounds, {2: 1, 4: 3, 6: 5}, from_round=2)
    # Five draws of .1, and three of .1: each is worth .1 per draw, and half of the budget.
    assert [m.per_draw for m in settled.members] == pytest.approx([0.1, 0.1])
    assert [m.cents for m in settled.members] == [50_00, 50_00]
    assert settled.never_drawn == ()


def test_who_was_asked_before_the_rounds_that_count_was_drawn_all_the_same(tmp_path):
    rounds = [{0: 0.1}, {0: 0.1, 1: 0.1}, *[{0: 0.1}] * 4]
    settled = late_account(tmp_path, rounds, {2: 1}, from_round=2)
    assert settled.never_drawn == ()
    # .5 of five draws, .1 of one.
    assert [(m.per_draw, m.cents) for m in settled.members] == [
        (pytest.approx(0.1), 50_00),
        (pytest.approx(0.1), 50_00),
    ]


def test_what_momentum_carries_on_is_paid_and_not_called_never_drawn(tmp_path):
    """Client 1 was asked in round 1 alone; its update is part of the step of round 2 too."""
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}, {0: 0.5, 1: 0.125}, {0: 0.5}])
    run = RunFolder(run_dir)
    rewrite(run.clients, without(round="2", client_id="1"))
    rewrite(run.rounds, altered({"round": "2"}, accepted="1"))
    records = read_run(run_dir)
    require_consistent(records)
    settled = settle(records, 90_00, from_round=2)
    # 1 and .125 of 1.125.
    assert [(m.contribution, m.cents) for m in settled.members] == [(1.0, 80_00), (0.125, 10_00)]
    assert settled.never_drawn == ()


def test_what_momentum_carries_on_is_no_update_of_length_0(tmp_path):
    """Client 1 was asked in round 1 alone, and is carried on in three others."""
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}] * 4)
    run = RunFolder(run_dir)
    sent = {"round": "1", "client_id": "1"}
    figures = {"length": "4.0", "weight": "2.0", "borrowed": "3.0"}
    rewrite(run.attribution, altered(sent, **figures, credited="-0.25"))
    for number in "234":
        rewrite(run.clients, without(round=number, client_id="1"))
        rewrite(run.rounds, altered({"round": number}, accepted="1"))
    records = read_run(run_dir)
    require_consistent(records)
    _, member = settle(records).members
    assert (member.length, member.weight, member.borrowed) == (4.0, 2.0, 3.0)
    assert "4.0 times as long as is usual, its weight is 2.0 times" in member.verdict.reason


def test_a_step_that_was_taken_back_is_no_second_round_in_which_members_cancel(tmp_path):
    """They do in rounds 1 and 3; round 2 takes the first step back, with its figures."""
    rounds = [{0: 1.0, 1: 0.5}, {0: -1.0, 1: -0.5}, *[{0: 1.0, 1: 0.5}] * 4]
    run_dir = make_run(tmp_path / "run", rounds)
    for number in "123":
        rewrite(RunFolder(run_dir).attribution, altered({"round": number}, opposed="0.95"))
    settled = settle(read_run(run_dir))
    assert [member.opposed_rounds for member in settled.members] == [2, 2]


@pytest.mark.parametrize(
    ("rounds", "is_drawn"),
    [
        ([{0: 1.0}, {1: 0.5}] * 3, True),  # Each in three rounds, in others.
        ([{0: 1.0}, {1: 0.5}] * 3 + [{0: 1.0}], True),
        ([{0: 1.0, 1: 0.5}] * 6, False),
    ],
)
def test_members_are_drawn_where_their_rounds_differ(tmp_path, rounds, is_drawn):
    settled = account(tmp_path, rounds)
    assert settled.is_drawn == is_drawn
    assert settled.about == ("another draw of members" if is_drawn else "other rounds")


def test_rounds_left_out_do_not_say_whether_members_were_drawn(tmp_path):
    """Client 1 misses round 3 alone, in which the loss rises, and round 4 brings it back."""
    usual = {0: 1.0, 1: 0.5}
    rounds = [usual, usual, {0: -1.0}, {0: 6.0, 1: 3.0}, *[usual] * 4]
    # The loss rises by 10, of which 9 are nobody's, and falls by 10.
    settled = account(tmp_path, rounds, remainders={3: -9.0, 4: 1.0})
    assert settled.left_out == (3, 4)
    assert not settled.is_drawn


@pytest.mark.parametrize(("ties", "cents"), [("apart", [50_00, 45_00]), ("alike", [47_50, 47_50])])
def test_members_that_are_not_told_apart_may_be_paid_alike(tmp_path, ties, cents):
    even = [0.25] * 4
    blocks = {0: [0.2, 0.3, 0.25, 0.25], 1: [0.3, 0.2, 0.25, 0.25], 2: even, 3: even}
    rounds = [{0: 1.0, 1: 0.9, 2: 0.1, 3: 0.0}] * 5
    settled = account(tmp_path, rounds, 100_00, ties=ties, blocks=blocks)
    assert settled.groups == ((0, 1),)
    # Whoever sent nothing gets nothing.
    assert [member.cents for member in settled.members] == [*cents, 5_00, 0]
    # Intervals are of each one's own share.
    assert [member.own_share for member in settled.members] == [0.5, 0.45, 0.05, 0.0]
    assert [member.alike for member in settled.members] == [1, 1, 0, 0]


def test_where_all_took_part_in_all_rounds_no_draw_ties_members(tmp_path):
    """Ties are about the held-out set and the draw: without blocks there was no luck of either."""
    rounds = [{0: 3.0, 1: 0.8}, {0: 0.2, 1: 0.9}, {0: 1.9, 1: 0.2}, {0: 0.5, 1: 0.6}]
    rounds += [{0: 0.1, 1: 0.3}]
    by_sum = account(tmp_path / "sum", rounds, 1000_00, "sum", ties="alike")
    by_draw = account(tmp_path / "draw", rounds, 1000_00, "draw", ties="alike")
    cents = [670_59, 329_41]  # 5.7 and 2.8 of 8.5.
    for settled in (by_sum, by_draw):
        assert (settled.groups, [m.cents for m in settled.members]) == ((), cents)
        assert settled.about == "other rounds"


def test_nobody_is_paid_alike_where_nobody_is_paid(tmp_path):
    blocks = {0: [0.2, 0.3, 0.25, 0.25], 1: [0.3, 0.2, 0.25, 0.25]}
    rounds = [{0: 1.0, 1: 0.9}] * 5
    settled = account(tmp_path, rounds, 100_00, ties="alike", blocks=blocks, remainder=-9.0)
    assert settled.unpaid
    assert settled.groups == ()
    assert [member.alike for member in settled.members] == [0, 0]


def test_groups_are_told_by_the_studentised_range():
    # Three members of variance 2 each: differences of 4, as far as q / sqrt(2) * 2 = q sqrt(2).
    luck = Luck("luck", np.eye(3), np.eye(3) * math.sqrt(2), 12)
    limit = studentized_range.ppf(0.95, 3, 12) * math.sqrt(2)
    values = np.array([2 * limit + 1, limit + 0.99, 1.0])
    apart = told_apart(values, [luck])
    assert apart.tolist() == [[False, True, True], [True, False, False], [True, False, False]]
    assert groups(values, apart) == [[0], [1, 2]]
    assert groups(-values, apart) == []


def test_who_is_told_apart_from_one_of_a_group_is_not_in_it():
    """The third lies near the second, and far from the first, in whose group the second is."""
    apart = np.zeros((3, 3), dtype=bool)
    apart[0, 2] = apart[2, 0] = True
    assert groups(np.array([3.0, 2.0, 1.0]), apart) == [[0, 1], [2]]
    assert groups(np.array([2.0, 3.0, 1.0]), apart) == [[1, 0], [2]]


def test_without_blocks_intervals_are_about_rounds(tmp_path):
    settled = account(tmp_path, [{0: 1.0}] * 5)
    assert (settled.about, settled.widest_share) == ("other rounds", None)
    assert account(tmp_path, [{0: 1.0}] * 4).about == ""


@pytest.mark.parametrize(("relative", "level"), [(False, "review"), (True, "accept")])
def test_where_weights_follow_lengths_nobody_is_accepted_unseen(tmp_path, relative, level):
    run = make_run(tmp_path / "run", [{0: 1.0, 1: 0.5}] * 5)
    settings = {"strategy": "influence-descent", "influence-descent.relative": relative}
    RunFolder(run).config.write(settings)
    assert {member.verdict.level for member in settle(read_run(run)).members} == {level}


BORROWED = {"length": 1.2, "weight": 1.0, "borrowed": 30.0}


def facts(contribution, equal_part, interval, taken_part, refused, **more):
    """A member of whom this is known."""
    values = dict.fromkeys((field.name for field in dataclasses.fields(MemberAccount)), 0)
    values |= {"contribution": contribution, "credited": contribution, "equal_part": equal_part}
    intervals = () if interval is None else (Between("luck", *interval),)
    more |= {"taken_part": taken_part, "refused": refused, "intervals": intervals}
    return MemberAccount(**(values | more))


CASES = [
    (facts(0.4, 0.5, (0.1, 0.9), 20, 0), "accept", "it contributed"),
    (facts(0.4, -0.5, (-0.1, 0.9), 20, 0), "accept", "it contributed"),
    (facts(0.4, 0.5, (0.1, 0.9), 20, 2), "review", "2 of its 22 replies were refused"),
    (facts(0.4, 0.5, (0.1, 0.9), 2, 3), "quarantine", "3 of its 5 replies were refused"),
    (facts(0.4, 0.5, (0.1, 0.9), 3, 3), "review", "3 of its 6 replies"),
    (facts(0.0, 0.5, (0.0, 0.0), 20, 0), "review", "exactly 0"),
    (facts(0.0, 0.0, (0.0, 0.0), 0, 0), "review", "no reply was accepted"),
    (facts(0.12, 0.5, (0.1, 1.2), 9, 0), "review", "less than a quarter of an equal part"),
    (facts(0.13, 0.5, (-0.1, 1.2), 9, 0), "accept", "it contributed"),
    (facts(-0.1, 0.5, (-0.4, 0.2), 9, 0), "review", "raised the loss"),
    (facts(-0.1, 0.5, (-0.4, -0.01), 9, 0), "quarantine", "whole interval is negative"),
    (facts(-0.1, 0.5, None, 3, 0), "review", "raised the loss"),
    (facts(0.4, 0.5, None, 3, 0), "review", "too few rounds to judge by: 3"),
    (facts(0.4, 0.5, (0.0, 1.2), 1, 0), "review", "too few rounds to judge by: 1"),
    (facts(0.4, 0.5, (0.1, 0.9), 20, 0, left_out_harm=30.2), "quarantine", "by 30.2 times what"),
    (facts(0.4, 0.5, (0.1, 0.9), 20, 0, left_out_harm=1.0), "accept", "it contributed"),
    (facts(0.4, 0.5, (0.1, 0.9), 20, 0, is_weighed_by_length=True), "review", "the length of upd"),
    (facts(0.4, 0.5, (0.1, 0.9), 20, 0, has_same_part=True), "review", "the same own part"),
    (
        facts(0.4, 0.5, (0.1, 0.9), 20, 0, credited=0.1, **BORROWED),
        "review",
        "1.0 times that of the median member, and they hold 30.0 times as much",
    ),
    (facts(0.4, 0.5, (0.1, 0.9), 20, 0, credited=0.35, **BORROWED), "accept", "contributed"),
    (
        facts(0.4, 0.5, (0.1, 0.9), 20, 0, opposed_rounds=3),
        "review",
        "in 3 rounds its update and another member's cancelled each other",
    ),
]


@pytest.mark.parametrize(("member", "level", "reason"), CASES)
def test_each_rule(member, level, reason):
    verdict = with_verdict(member).verdict
    assert verdict.level == level
    assert reason in verdict.reason


def test_every_rule_is_reached():
    reached = {next(rule.words for rule in RULES if rule.applies(member)) for member, *_ in CASES}
    assert reached == {rule.words for rule in RULES}
