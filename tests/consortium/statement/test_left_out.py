"""Which rounds count where one update throws the model off: harm and recovery are one event."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st

from client_app import app as client_app
from fedif_consortium.parts import server_parts
from fedif_consortium.statement.account import settle
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.consistency import require_consistent
from fedif_consortium.statement.records import RoundLoss, read_run
from fedif_consortium.statement.shares import MOST_REMAINDER, event_of, fall_of, left_out_rounds
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import StatementError
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from tests.consortium.statement import signed_runs as of
from tests.consortium.statement.runs import add_rounds, make_run

HARMED = 3  # The round in which a member spoils the model, of six.
SPOILER = 1


def rounds_of(losses, remainders=None):
    """Return the rounds that lead from one loss to the next, by number from 1."""
    rows = []
    for number, (before, after) in enumerate(pairwise(losses), start=1):
        fall = before - after
        decrease = fall if math.isfinite(fall) else 0.0
        remainder = (remainders or {}).get(number, 0.0)
        rows.append(RoundLoss(number, before, after, decrease, decrease - remainder, remainder))
    return rows


@pytest.mark.parametrize(
    ("losses", "place", "event"),
    [
        # 2 -> 1 -> 50 -> 3 -> 1 -> 0.5: from the harm, or from what came after it.
        ((2, 1, 50, 3, 1, 0.5), 1, (1, 2, 3)),
        ((2, 1, 50, 3, 1, 0.5), 2, (1, 2, 3)),
        ((2, 1, 50, 3, 1, 0.5), 3, (1, 2, 3)),
        # What goes lower than ever is no recovery.
        ((2, 1, 50, 3, 1, 0.5), 4, (4,)),
        ((2, 1, 50, 3, 1, 0.5), 0, (0,)),
        # It never comes back: to the end of the run.
        ((2, 1, 50, 3, 1.5), 2, (1, 2, 3)),
        # A small rise before is another event, which the recovery did not come back below.
        ((2, 1, 1.25, 50, 1.5, 1.25, 1), 3, (2, 3, 4)),
        # It did here: both are made good by the same round.
        ((2, 1, 1.25, 50, 0.5), 3, (1, 2, 3)),
        # No finite loss is more than any.
        ((2, 1, math.inf, 3, 1), 1, (1, 2, 3)),
        ((2, 1, math.inf, 3, 1), 2, (1, 2, 3)),
        ((math.inf, 2, 1), 0, (0,)),
    ],
)
def test_harm_and_the_recovery_from_it_are_one_event(losses, place, event):
    assert tuple(event_of(place, losses)) == event


def test_a_recovery_that_is_left_out_takes_the_harm_along(tmp_path):
    # By hand: 2 -> 1.5 -> 100.5 by client 1 -> 1 by all, of which 40 are nobody's -> 0.75.
    rounds = [{0: 0.25, 1: 0.25}, {0: -1.0, 1: -98.0}, {0: 79.5, 1: 60.0}, {0: 0.25}]
    records = read_run(make_run(tmp_path / "run", rounds, remainders={3: -40.0}))
    require_consistent(records)
    settled = settle(records, 90_00)
    assert (settled.left_out, settled.unpaid) == ((2, 3), "")
    # The run fell by 1.25: 0.75 to members, and 0.5 that lies in the event.
    assert (settled.loss_before, settled.loss_after, settled.decrease) == (2.0, 0.75, 1.25)
    assert (settled.attributed, settled.remainder, settled.left_out_decrease) == (0.75, 0.0, 0.5)
    first, second = settled.members
    assert [(m.client_id, m.contribution, m.cents) for m in settled.members] == [
        (0, 0.5, 60_00),
        (1, 0.25, 30_00),
    ]
    # Who spoilt it gains nothing by what it repaired, and people are to look at it.
    assert (first.left_out_harm, second.left_out_harm) == (0.0, 38.0 / 1.25)
    assert second.verdict.level == "quarantine"
    assert "30.4 times what the whole run lowered it by" in second.verdict.reason


def test_a_step_and_the_round_that_took_it_back_count_both_or_neither(tmp_path):
    # 2 -> 1.5 -> 0.25, a remainder of 0.875 -> 1.5 again -> 0.25, of which 0.625 are nobody's.
    rounds = [{0: 0.25, 1: 0.25}, {0: 0.25, 1: 0.125}, {0: -0.25, 1: -0.125}, {0: 0.125, 1: 0.5}]
    remainders = {2: 0.875, 3: -0.875, 4: 0.625}
    records = read_run(make_run(tmp_path / "run", rounds, remainders=remainders))
    require_consistent(records)
    assert dict(records.taken_back) == {3: 2}
    settled = settle(records, 90_00)
    assert (settled.left_out, settled.attributed) == ((), 1.125)
    assert [(m.client_id, m.contribution, m.cents) for m in settled.members] == [
        (1, 0.75, 60_00),
        (0, 0.375, 30_00),
    ]
    # Where the remainder of round 4 cannot stay, that round goes alone: what was taken back is 0.
    rows = rounds_of((2, 1.5, 0.25, 1.5, 1), {2: 1.25, 3: -1.25, 4: 1.0})
    assert left_out_rounds(rows) == (2, 3, 4)
    assert left_out_rounds(rows, {3: 2}) == (4,)
    # With a round between them that has a remainder, all three go.
    rows = rounds_of((2, 1.5, 0.25, 0.125, 1.375, 1), {2: 1.0, 3: -2.75, 4: -1.0})
    assert left_out_rounds(rows, {4: 2}) == (2, 3, 4)


def test_pages_say_what_counts_for_nobody_and_the_statement_is_verified(tmp_path):
    rounds = [{0: 0.25, 1: 0.25}, {0: -1.0, 1: -98.0}, {0: 79.5, 1: 60.0}, {0: 0.25}]
    run = make_run(tmp_path / "run", rounds, remainders={3: -40.0})
    statement = make_statement(run, Ed25519PrivateKey.generate(), budget_cents=90_00)
    verify(run)
    for page in (statement / "statement.html", statement / "members" / "002.html"):
        text = " ".join(page.read_text().split())
        assert "Rounds 2, 3 count for nobody" in text
        assert "lowered the validation loss by 0.5" in text
        assert "its whole event" in text


def test_a_spoilt_first_round_leaves_the_others(tmp_path):
    # 2 -> 300 -> 1 -> 0.5: only the last round counts, in which client 1 had no part.
    rounds = [{1: -298.0}, {0: 200.0, 1: 130.0}, {0: 0.5}]
    settled = settle(read_run(make_run(tmp_path / "run", rounds, remainders={2: -31.0})), 10_00)
    assert (settled.left_out, settled.left_out_decrease, settled.attributed) == ((1, 2), 1.0, 0.5)
    assert [member.cents for member in settled.members] == [10_00, 0]


def test_a_run_that_ends_spoilt_has_no_gain_to_share():
    # 2 -> 1 -> 50 -> 2.5: it ends where it was worse than at the start.
    assert left_out_rounds(rounds_of((2, 1, 50, 2.5), {3: 10.0})) == ()
    assert fall_of(rounds_of((2, 1, 50, 2.5))) == -0.5
    assert fall_of(rounds_of((2, 1, math.nan))) == -math.inf


@pytest.mark.parametrize("end", ["nan", "2.5"])
def test_a_model_that_is_lost_at_the_end_pays_nobody(tmp_path, end):
    run = make_run(tmp_path / "run", [{0: 0.5, 1: 0.5}])
    fall = 0.0 if end == "nan" else -1.5
    add_rounds(run, (2, 1.0, end, fall, 0.0, fall))
    settled = settle(read_run(run), 10_00)
    assert {member.cents for member in settled.members} == {0}
    words = "no finite validation loss" if end == "nan" else "did not fall"
    assert words in settled.unpaid


def test_what_repairs_a_model_without_a_finite_loss_pays_nobody(tmp_path):
    # 2 -> 1 -> nan -> 30 -> 1 -> 0.5: 29 of it is a recovery.
    run = make_run(tmp_path / "run", [{0: 0.5, 1: 0.5}])
    add_rounds(
        run,
        (2, 1.0, "nan", 0.0, 0.0, 0.0),
        (3, "inf", 30.0, 0.0, 0.0, 0.0),
        (4, 30.0, 1.0, 29.0, 29.0, 0.0),
        (5, 1.0, 0.5, 0.5, 0.5, 0.0),
    )
    parts = run / "attribution.csv"
    line = parts.read_text().splitlines()[1].split(",")
    for number, value in ((4, "29.0"), (5, "0.5")):
        own = [str(number), *line[1:4], value, value, *line[6:]]
        parts.write_text(parts.read_text() + ",".join(own) + "\n")
    settled = settle(read_run(run))
    assert (settled.left_out, settled.attributed, settled.decrease) == ((2, 3, 4), 1.5, 1.5)
    assert [member.contribution for member in settled.members] == [1.0, 0.5]


def test_where_no_rounds_ever_count_a_lost_model_leaves_nobody_paid(tmp_path):
    """2 -> 1, of which 0.875 are nobody's -> nan -> 1.75 -> 1.625, with a remainder of -0.875.

    Rounds 2 to 4 are the event of the lost model, and round 1 alone does not add up. All together
    would: 1.125 is attributed of as many falls, and the remainders cancel. The run fell by 0.375.
    """
    run = make_run(tmp_path / "run", [{0: 0.0625, 1: 0.0625}], remainder=0.875)
    add_rounds(
        run,
        (2, 1.0, "nan", 0.0, 0.0, 0.0),
        (3, "inf", 1.75, 0.0, 0.0, 0.0),
        (4, 1.75, 1.625, 0.125, 1.0, -0.875),
    )
    parts = run / "attribution.csv"
    line = parts.read_text().splitlines()[1].split(",")
    own = ["4", *line[1:4], "1.0", "1.0", *line[6:]]
    parts.write_text(parts.read_text() + ",".join(own) + "\n")
    settled = settle(read_run(run), 100_00)
    assert settled.left_out == ()
    assert [(m.share, m.cents) for m in settled.members] == [(0.0, 0), (0.0, 0)]
    assert "round 2 has no finite validation loss" in settled.unpaid


LOSSES = st.lists(st.integers(1, 40).map(lambda n: n / 8), min_size=2, max_size=12)
REMAINDERS = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=11, max_size=11)


@given(LOSSES, REMAINDERS)
def test_what_counts_adds_up_and_no_harm_is_without_its_recovery(losses, remainders):
    rounds = rounds_of(losses, dict(enumerate(remainders, start=1)))
    out = left_out_rounds(rounds)
    kept = [row for row in rounds if row.round not in out]
    if fall_of(rounds) <= 0:
        assert out == ()
        return
    counted, nobodys = (sum(getattr(row, of) for row in kept) for of in ("decrease", "remainder"))
    if out:
        assert counted > 0
        assert abs(nobodys) <= MOST_REMAINDER * counted
    # Rounds beside each other that are left out lead back to where they began, or to the end.
    for row in rounds:
        if row.round in out and row.round - 1 not in out:
            last = row.round
            while last + 1 in out:
                last += 1
            assert last == len(rounds) or losses[last] <= losses[row.round - 1]
    changed = sum(row.decrease for row in rounds if row.round in out)
    assert counted + changed == fall_of(rounds)


@given(LOSSES, REMAINDERS, st.sets(st.integers(1, 11)))
def test_no_pair_is_split(losses, remainders, drawn):
    rounds = rounds_of(losses, dict(enumerate(remainders, start=1)))
    numbers = sorted(number for number in drawn if number <= len(rounds))
    taken_back = dict(zip(numbers[1::2], numbers[::2], strict=False))
    out = left_out_rounds(rounds, taken_back)
    for later, earlier in taken_back.items():
        assert (later in out) == (earlier in out)


@given(LOSSES)
def test_rounds_that_add_up_all_count_whatever_they_did(losses):
    assert left_out_rounds(rounds_of(losses)) == ()


def test_an_event_is_part_of_what_is_checked(tmp_path):
    run = RunFolder(make_run(tmp_path / "run", [{0: 0.5}, {0: 0.5}]))
    text = run.attributed_rounds.path.read_text()
    second = "2,1.5,1.0,0.5,0.5,0.0"
    assert second in text
    # A remainder that the losses do not have; a loss from which nothing came.
    for line, words in (
        ("2,1.5,1.0,30.5,0.5,30.0", "round 2 has a fall of 30.5, its losses one of 0.5"),
        ("2,1.5,1.0,0.50000001,0.5,0.0", "a fall of 0.50000001, its losses one of 0.5$"),
        ("2,31.5,1.0,30.5,0.5,30.0", "round 2 begins at a loss of 31.5, but round 1 ended at 1.5"),
        ("2,nan,1.0,0.0,0.5,-0.5", "round 2 begins at a loss of nan, but round 1 ended at 1.5"),
    ):
        run.attributed_rounds.path.write_text(text.replace(second, line))
        with pytest.raises(StatementError, match=words):
            require_consistent(read_run(run.path))


def spoiling(factor):
    """Return a client of which one member sends so many times its update, in one round."""

    def client(message, context):
        reply = client_app(message, context)
        is_spoilt = message.content["config"]["server-round"] == HARMED
        is_spoilt = is_spoilt and context.node_config["partition-id"] == SPOILER
        if is_spoilt and "arrays" in reply.content:
            sent, own = reply.content["arrays"], message.content["arrays"]
            for name, array in sent.items():
                before = own[name].numpy()
                after = before + factor * (array.numpy() - before)
                sent[name] = Array(after.astype(before.dtype))
        return reply

    return client


@pytest.mark.parametrize("budget", ["", "1000"])
@pytest.mark.parametrize("factor", [200.0, -200.0])
@pytest.mark.parametrize("strategy", ["fedavg", "fedif", "influence-descent"])
def test_one_update_takes_nobodys_pay(tmp_path, strategy, factor, budget):
    run = of.run(
        *(LocalGrid(spoiling(factor), 4), tmp_path),
        num_clients=4,
        num_server_rounds=6,
        strategy=strategy,
        attribution="simpson",
        parts=server_parts(),
        **{"statement.budget": budget},
    )
    records = read_run(run)
    require_consistent(records)
    settled = settle(records, 1000_00)
    assert settled.unpaid == ""
    assert settled.decrease == pytest.approx(settled.loss_before - settled.loss_after)
    told = settled.attributed + settled.remainder + settled.left_out_decrease
    assert told == pytest.approx(settled.decrease)
    paid = {member.client_id: member.cents for member in settled.members}
    assert sum(paid.values()) >= 900_00
    is_thrown_off = strategy == "fedavg" and not budget
    if is_thrown_off:
        assert settled.left_out[0] == HARMED
        spoilers = [m.client_id for m in settled.members if m.verdict.level == "quarantine"]
        assert spoilers == [LocalGrid(client_app, 4).get_node_ids()[SPOILER]]
    else:
        assert settled.left_out == ()
