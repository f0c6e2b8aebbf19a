"""Shares with another mix of classes, and with another share of wrong labels: by hand."""

from __future__ import annotations

import csv
import json

import pytest

from fedif_consortium.statement.account import settle
from fedif_consortium.statement.bundle import account_json, make_statement, read_account
from fedif_consortium.statement.class_mix import ClassMix
from fedif_consortium.statement.manifest import ACCOUNT, TABLE
from fedif_consortium.statement.records import read_run
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import StatementError
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.runs import make_run
from tests.consortium.watch.test_page import Outline

ROUNDS = [{0: 0.5, 1: 0.25}] * 6  # 3 nats and 1.5.
ALIKE = (0.25, 0.25, 0.25, 0.25)
UNEVEN = (0.3, 0.2, 0.3, 0.2)
DOUBTFUL = {
    "examples": 100,
    "noise": 0.2,
    "low": 0.1,
    "high": 0.3,
    "corrected_noise": 0.2,
    "missing": [],
}


def run_of(folder, rounds=ROUNDS, *, provenance=(), shift=None, **more):
    run = make_run(folder / "run", rounds, provenance=dict(provenance), **more)
    if shift is not None:
        config = RunFolder(run).config
        config.write(config.read() | {"credit.class-shift": shift})
    return run


def members_of(run, **how):
    account = settle(read_run(run), 1000_00, **how)
    return {member.client_id: member for member in account.members}


def text_of(page) -> str:
    return " ".join(Outline(page.read_text()).text.split())


# -- another mix of classes

HALVES = {"held_out_classes": [0.5, 0.5]}
# The first member's contribution is to one class, the second one's to the other.
APART = {"by_class": 2, "classes": {0: [1, 0], 1: [0, 1]}, "provenance": HALVES}


def test_a_share_over_all_mixes_near_the_held_out_one(tmp_path):
    """The classes' own means are 6 and 3 nats: the first share is 6 q_1 / (6 q_1 + 3 q_2).

    The distance 1/4 is reached at q = (3/4, 1/4) and (1/4, 3/4).
    """
    run = run_of(tmp_path, shift=0.25, **APART)
    members = members_of(run)
    assert members[0].mix_interval == pytest.approx((1.5 / 3.75, 4.5 / 5.25))
    assert members[1].mix_interval == pytest.approx((0.75 / 5.25, 2.25 / 3.75))
    assert settle(read_run(run)).mix == ClassMix(0.25, 2)


def test_a_class_that_weighs_nothing_is_part_of_no_mix(tmp_path, key):
    """As above, with a class between the two to which the loss gives the weight 0."""
    three = {
        "by_class": 3,
        "classes": {0: [1, 0, 0], 1: [0, 0, 1]},
        "provenance": {"held_out_classes": [0.5, 0.0, 0.5]},
    }
    run = run_of(tmp_path, shift=0.25, **three)
    members = members_of(run)
    assert members[0].mix_interval == pytest.approx((1.5 / 3.75, 4.5 / 5.25))
    assert members[1].mix_interval == pytest.approx((0.75 / 5.25, 2.25 / 3.75))
    assert settle(read_run(run)).mix == ClassMix(0.25, 2)
    make_statement(run, key)
    verify(run)


def test_what_is_beyond_the_bounds_is_in_the_whole(tmp_path):
    """Half of the first contribution is credited: 3 q_1 of 6 q_1 + 3 q_2."""
    members = members_of(run_of(tmp_path, shift=0.25, credited={0: 0.5}, **APART))
    assert members[0].mix_interval == pytest.approx((0.75 / 3.75, 2.25 / 5.25))
    assert members[1].mix_interval == pytest.approx((0.75 / 5.25, 2.25 / 3.75))


def test_means_per_draw_have_their_own(tmp_path):
    """The second was asked in half of the rounds: 0.5 and 0.25 nats per draw."""
    run = run_of(tmp_path, [{0: 0.5, 1: 0.25}, {0: 0.5}] * 3, shift=0.25, **APART)
    members = members_of(run, pay_by="draw")
    assert members[0].mix_interval == pytest.approx((1.5 / 3.75, 4.5 / 5.25))


def test_rounds_that_do_not_count_have_no_part_in_it(tmp_path):
    run = run_of(tmp_path, [{0: 9.0}, *ROUNDS], shift=0.25, **APART)
    members = members_of(run, from_round=2)
    assert members[0].mix_interval == pytest.approx((1.5 / 3.75, 4.5 / 5.25))


def test_who_is_paid_nothing_has_no_part_with_any_mix(tmp_path):
    rounds = [{0: 0.5, 1: -0.25}] * 6
    members = members_of(run_of(tmp_path, rounds, **APART))
    assert members[1].mix_interval == (0.0, 0.0)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {**APART, "provenance": {}},
        {**APART, "provenance": {"held_out_classes": [1.0]}},
        {**APART, "shift": 0.0},
    ],
    ids=["not by class", "no mix", "another mix", "set to 0"],
)
def test_without_contributions_by_class_there_is_no_such_interval(tmp_path, key, more):
    run = run_of(tmp_path, **more)
    assert settle(read_run(run)).mix is None
    assert [member.mix_interval for member in members_of(run).values()] == [(), ()]
    make_statement(run, key)
    verify(run)


def test_a_run_without_shares_has_none(tmp_path):
    rounds = [{0: -0.5, 1: -0.25}] * 6
    members = members_of(run_of(tmp_path, rounds, **APART))
    assert [member.mix_interval for member in members.values()] == [(), ()]


def test_the_default_is_one_of_ten_classes_twice_as_frequent(tmp_path):
    """(2 - 1)^2 / (10 - 1)."""
    mix = settle(read_run(run_of(tmp_path, **APART))).mix
    assert mix.radius == pytest.approx(1 / 9, abs=0.005)
    assert ClassMix(mix.radius, 10).times == pytest.approx(2, abs=0.01)
    assert ClassMix(1 / 9, 10).times == pytest.approx(2)
    assert ClassMix(0.25, 1).times == 1


def test_pages_table_and_verify_say_it(tmp_path, key):
    run = run_of(tmp_path, shift=0.25, **APART)
    folder = make_statement(run, key, budget_cents=1000_00)
    words = (
        "with any mix of the held-out classes up to that in which one of 2 equally frequent "
        "classes is 1.5 times as frequent (chi-square distance 0.25)"
    )
    said = f"Your share would be between 40.0 % (400.00) and 85.7 % (857.14) {words}."
    assert said in text_of(folder / "members" / "001.html")
    whole = text_of(folder / "statement.html")
    assert f"between which values a share lies {words}." in whole
    assert "mix 40 to 86 %" in whole
    with (folder / TABLE).open(newline="") as file:
        row = next(csv.DictReader(file))
    assert float(row["share_mix_low"]) == pytest.approx(0.4)
    assert float(row["share_mix_high"]) == pytest.approx(6 / 7)
    verify(run)
    account = read_account(account_json(settle(read_run(run))))
    assert account.mix.times == pytest.approx(1.5)
    # Another distance than the run was agreed with does not follow from its records.
    config = RunFolder(run).config
    config.write(config.read() | {"credit.class-shift": 0.01})
    make_statement(run, key, again=True)
    config.write(config.read() | {"credit.class-shift": 0.25})
    with pytest.raises(StatementError, match=r"config\.json was changed"):
        verify(run)


# -- another share of wrong labels


def doubtful(folder, at_noise_ends, rounds=ROUNDS, **more):
    provenance = {"held_out": DOUBTFUL | more.pop("found", {})}
    return run_of(folder, rounds, provenance=provenance, at_noise_ends=at_noise_ends, **more)


# 2.25 and 1.5 nats at the lower end, 4.5 and 1.5 at the upper one.
KEPT = {0: (0.75, 1.5), 1: (1.0, 1.0)}
BLOCKS = {"blocks": {0: UNEVEN, 1: ALIKE}}


def test_shares_at_both_ends(tmp_path):
    members = members_of(doubtful(tmp_path, KEPT))
    assert members[0].noise_shares == pytest.approx((0.6, 0.75))
    assert members[1].noise_shares == pytest.approx((0.4, 0.25))
    assert members[0].own_share == pytest.approx(2 / 3)


def test_a_share_s_interval_is_the_union_of_three(tmp_path):
    """The first member's blocks have sums of .3 and .2 of a: a standard error of a / sqrt(75).

    A share of a / (a + 1.5) moves by 1.5 / (a + 1.5)^2 of that, and t with 3 degrees is 3.182.
    """
    run = doubtful(tmp_path, KEPT, **BLOCKS)
    members = members_of(run)
    half_widths = [3.182446 * 1.5 / (a + 1.5) ** 2 * a / 75**0.5 for a in (2.25, 4.5)]
    (found,) = members[0].share_intervals
    assert found.low == pytest.approx(0.6 - half_widths[0])
    assert found.high == pytest.approx(0.75 + half_widths[1])
    (other,) = members[1].share_intervals
    assert (other.low, other.high) == pytest.approx((1 - found.high, 1 - found.low))
    # The contribution's interval is that of the loss which pays: 3 nats.
    (own,) = members[0].intervals
    assert own.low == pytest.approx(3 - 3.182446 * 3 / 75**0.5)


def test_credits_and_draws_apply_to_both_ends(tmp_path):
    """Half of the first one's is credited, of all that is gained; per draw in half of the rounds.

    At the lower end .375 and .25 nats per draw, of which .1875 of .625 is paid.
    """
    rounds = [{0: 0.5, 1: 0.25}, {0: 0.5}] * 3
    members = members_of(doubtful(tmp_path, KEPT, rounds, credited={0: 0.5}), pay_by="draw")
    assert members[0].noise_shares == pytest.approx((0.1875 / 0.625, 0.375 / 1.0))
    assert members[1].noise_shares == pytest.approx((0.25 / 0.625, 0.25 / 1.0))


def test_rounds_that_do_not_count_do_not_count_at_the_ends(tmp_path):
    """The third round throws the loss off, and the fourth one brings it back.

    The others bring 1.125 and .5 nats: .84375 of the first at the lower end, 1.6875 at the upper.
    """
    rounds = [{0: 0.75, 1: 0.25}, {0: 0.25, 1: 0.25}, {1: -50.0}, {0: 15.0, 1: 5.0}, {0: 0.125}]
    run = doubtful(tmp_path, KEPT, rounds, remainders={3: 30.0})
    assert settle(read_run(run)).left_out == (3, 4)
    expected = (0.84375 / 1.34375, 1.6875 / 2.1875)
    assert members_of(run)[0].noise_shares == pytest.approx(expected)
    # Without the first round .375 and .25.
    expected = (0.28125 / 0.53125, 0.5625 / 0.8125)
    assert members_of(run, from_round=2)[0].noise_shares == pytest.approx(expected)


def doubts_of(run) -> dict[str, tuple[int, ...]]:
    return {doubt.reason: doubt.members for doubt in settle(read_run(run)).held_out.doubts}


@pytest.mark.parametrize(
    ("at_ends", "members"),
    [
        (KEPT, None),
        # .75 and 1.5 nats at the lower end, and at the upper one.
        ({0: (0.25, 1.5), 1: (1.0, 1.0)}, (0, 1)),
        ({0: (1.5, 0.25), 1: (1.0, 1.0)}, (0, 1)),
        # Who is paid nothing at an end is last there; where nobody is paid, nobody is ahead.
        ({0: (-1.0, 1.0), 1: (1.0, 1.0)}, (0, 1)),
        ({0: (-1.0, 1.0), 1: (-9.0, 1.0)}, None),
    ],
)
def test_an_order_that_an_end_would_change_is_open(tmp_path, at_ends, members):
    found = doubts_of(doubtful(tmp_path, at_ends, **BLOCKS))
    assert found.get("noise-interval") == members


def test_those_who_keep_their_places_are_not_named(tmp_path):
    """3 nats, 1.5 and .6; at the lower end the last two have .75 and 1.2."""
    rounds = [{0: 0.5, 1: 0.25, 2: 0.1}] * 6
    at_ends = {0: (1.0, 1.0), 1: (0.5, 1.0), 2: (2.0, 1.0)}
    assert doubts_of(doubtful(tmp_path, at_ends, rounds))["noise-interval"] == (1, 2)


def test_what_was_not_measured_at_the_ends_leaves_everybody_open(tmp_path, key):
    run = doubtful(tmp_path, {}, **BLOCKS)
    assert doubts_of(run) == {"noise-interval": (0, 1)}
    assert members_of(run)[0].noise_shares == ()
    # Of one member alone it says nothing of shares.
    assert members_of(doubtful(tmp_path / "one", {0: (1.0, 1.0)}))[0].noise_shares == ()
    page = text_of(make_statement(run, key) / "statement.html")
    assert "How many of the held-out labels are wrong is known up to an interval alone" in page


@pytest.mark.parametrize("found", [{"corrected_noise": 0.0}, {"low": 0.3}, {"low": None}])
def test_where_nothing_is_doubtful_the_columns_say_nothing(tmp_path, found):
    run = doubtful(tmp_path, KEPT, found=found, **BLOCKS)
    assert "noise-interval" not in doubts_of(run)
    assert members_of(run)[0].noise_shares == ()


def test_pages_say_what_a_share_would_be(tmp_path, key):
    run = doubtful(tmp_path, KEPT, **BLOCKS)
    folder = make_statement(run, key, budget_cents=1000_00)
    said = (
        "If 10 % of the held-out labels were wrong instead of 20 %, your share would be 60.0 % "
        "(600.00); if 30 % were, 75.0 % (750.00)."
    )
    assert said in text_of(folder / "members" / "001.html")
    whole = text_of(folder / "statement.html")
    assert "labels 60.0 %, 75.0 %" in whole
    assert 'The figures after "labels" are the shares if 10 %, and if 30 %, of the' in whole
    assert "with four times as many" not in whole  # More examples do not end this doubt.
    with (folder / TABLE).open(newline="") as file:
        row = next(csv.DictReader(file))
    assert float(row["share_noise_low"]) == pytest.approx(0.6)
    assert float(row["share_noise_high"]) == pytest.approx(0.75)
    verify(run)


def test_verify_recomputes_shares_at_both_ends(tmp_path, key, monkeypatch):
    """An operator who says another one makes a statement that nobody verifies."""
    run = doubtful(tmp_path, KEPT)
    honest = account_json

    def flattering(account):
        said = json.loads(honest(account))
        said["members"][0]["noise_shares"] = [0.7, 0.75]
        return json.dumps(said)

    with monkeypatch.context() as patch:
        patch.setattr("fedif_consortium.statement.bundle.account_json", flattering)
        make_statement(run, key)
    with pytest.raises(StatementError, match=rf"{ACCOUNT}: members\[0\]: noise_shares\[0\] is 0.7"):
        verify(run)


def test_no_credit_at_an_end_is_above_the_contribution_there(tmp_path, key):
    run = doubtful(tmp_path, KEPT)
    table = RunFolder(run).attribution
    text = table.path.read_text()
    rows = list(csv.DictReader(text.splitlines()))
    for row in rows:
        row["credited_noise_low"] = "9.0"
    with table.path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(StatementError, match="client 0 is credited with more than it contributed"):
        make_statement(run, key)
