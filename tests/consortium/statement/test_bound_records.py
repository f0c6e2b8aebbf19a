"""Every number of a statement rests on something that members hold: whoever changes it is found.

The operator writes each file of the run's folder, makes chain and heads anew from what it wrote,
signs them and the statement. Members hold receipts and their keys.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any

import pytest

from fedif_consortium.evidence.keys import read_members
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.secret_validation import commitment_of, salt_of
from tests.consortium.statement.paid_runs import cents, checked, state
from tests.consortium.statement.receipted_runs import held
from tests.consortium.statement.signed_runs import (
    NAMES,
    altered,
    bind_anew,
    pay_otherwise,
    rewrite,
    swapped,
    without,
    without_columns,
)

HONEST = {"ada": 456_55, "bob": 407_32, "cyd": 136_13}  # Of a thousand, in cents.


def test_an_honest_run_is_paid_and_checked(paid, copied, key):
    assert cents(state(copied, key)) == pytest.approx(HONEST, abs=1_00)
    verified = checked(copied, paid)
    assert verified.chosen == ("budget 1000.00", "pay-by sum", "ties apart")
    assert [[seen.number for seen in member.attempts] for member in verified.receipts] == [[1]] * 3


# -- what decides pay


def raise_loss(after: int, nats: float) -> Callable[[RunFolder], None]:
    """Return what says that the loss was higher after a round, so that rounds lead on."""

    def change(run: RunFolder) -> None:
        def changed(rows):
            for row in rows:
                before, behind, fall, left = (
                    float(row[name])
                    for name in ("loss_before", "loss_after", "decrease", "remainder")
                )
                if row["round"] == str(after):
                    behind, fall, left = behind + nats, fall - nats, left - nats
                if row["round"] == str(after + 1):
                    before, fall, left = before + nats, fall + nats, left + nats
                figures = {"loss_before": before, "loss_after": behind, "decrease": fall}
                yield row | {n: repr(v) for n, v in (figures | {"remainder": left}).items()}

        rewrite(run.attributed_rounds, lambda rows: list(changed(rows)))

    return change


def widen_blocks(run: RunFolder) -> None:
    """Give everybody intervals in which all are alike: blocks lie apart, and add up as before."""

    def widened(row):
        blocks = {name: float(row[name]) for name in row if "_block_" in name}
        mean = fmean(blocks.values())
        return row | {name: repr(mean + 300 * (value - mean)) for name, value in blocks.items()}

    rewrite(run.attribution, lambda rows: list(map(widened, rows)))


LAST = raise_loss(6, 30.0)


@pytest.mark.parametrize(
    ("attack", "ties", "pays"),
    [
        (raise_loss(0, 30.0), "apart", {"ada": 354_16, "bob": 348_15, "cyd": 297_69}),
        (LAST, "apart", {"ada": 0, "bob": 0, "cyd": 0}),
        (widen_blocks, "alike", {"ada": 333_34, "bob": 333_33, "cyd": 333_33}),
    ],
)
def test_remainders_and_blocks_are_bound(paid, copied, key, attack, ties, pays):
    attack(copied)
    assert cents(state(copied, key, ties=ties)) == pytest.approx(pays, abs=1_00)
    with pytest.raises(StatementError, match="a table was changed: its rows are not those that"):
        checked(copied, paid)
    bind_anew(copied, key)
    state(copied, key, ties=ties)
    with pytest.raises(StatementError, match=r"history was rewritten: .* holds a signed head"):
        checked(copied, paid)
    if attack is LAST:  # Nobody has signed since: it takes the receipts that came at the end.
        verify(copied.path)
        return
    with pytest.raises(StatementError, match=r"history was rewritten: client .* signed that it"):
        verify(copied.path)


def to(table: str, where: dict[str, str], **values: str) -> Callable[[RunFolder], None]:
    """Return what gives lines of a table other values."""
    return lambda run: rewrite(getattr(run, table), altered(where, **values))


def both(*changes: Callable[[RunFolder], None]) -> Callable[[RunFolder], None]:
    def change(run: RunFolder) -> None:
        for one in changes:
            one(run)

    return change


def write(file: str, **values: Any) -> Callable[[RunFolder], None]:
    """Return what gives a JSON file other values."""

    def change(run: RunFolder) -> None:
        own = getattr(run, file)
        own.write({**own.read(), **values})

    return change


@pytest.mark.parametrize("table", ["clients", "attribution", "attendance", "signatures"])
def test_no_round_stands_before_an_earlier_one(paid, copied, key, table):
    """No hash of a round tells: a member's last line says its weight score, and who is there."""
    others = copied.attendance.read()
    rewrite(copied.attendance, lambda rows: [*rows, {**others[0], "round": "4"}])
    bind_anew(copied, key)
    rewrite(getattr(copied, table), lambda rows: sorted(rows, key=lambda row: -int(row["round"])))
    state(copied, key)
    words = rf"{table}\.csv, line \d+: .*it is of round \d, and stands behind round \d"
    with pytest.raises(StatementError, match=words):
        verify(copied.path)


ONE_BLOCK = [0.981, *[0.001] * 19]  # One of them decides everything: nobody is told apart.


def test_what_members_signed_binds_provenance(paid, copied, key):
    """All heads of an attempt have the same, so the first head that was signed has the last one."""
    write("provenance", held_out_blocks=ONE_BLOCK)(copied)
    bind_anew(copied, key)
    pays = {"ada": 333_34, "bob": 333_33, "cyd": 333_33}
    assert cents(state(copied, key, ties="alike")) == pytest.approx(pays, abs=1_00)
    with pytest.raises(StatementError, match=r"history was rewritten: client .* signed that it"):
        verify(copied.path, members=read_members(paid / "keys"))
    with pytest.raises(StatementError, match="ada holds a signed head of 3 lines that"):
        checked(copied, paid, "ada")


@pytest.mark.parametrize("file", ["config", "provenance"])
def test_only_the_last_head_cannot_have_another_origin(paid, copied, key, file):
    """Nobody signs the last head; the one before it has the same settings and provenance."""
    write(file, held_out_blocks=ONE_BLOCK)(copied)
    bind_anew(copied, key, from_round=6)
    state(copied, key)
    words = (
        r"round 6 has other settings, or another provenance, than round 5 of the same attempt, 1"
    )
    with pytest.raises(StatementError, match=words):
        verify(copied.path, members=read_members(paid / "keys"))


def test_the_last_names_and_own_parts_are_bound_by_receipts_and_by_no_signature(paid, copied, key):
    """They change with each round, and members sign earlier heads."""
    copy_own_part(copied)
    bind_anew(copied, key, from_round=6)
    state(copied, key)
    verify(copied.path, members=read_members(paid / "keys"))
    with pytest.raises(StatementError, match="ada holds a signed head of 18 lines that"):
        checked(copied, paid, "ada")


def scale_rounds(factor: float) -> Callable[[RunFolder], None]:
    """Return what multiplies all losses and what is nobody's, so that rounds add up."""

    def scaled(rows):
        for row in rows:
            names = [name for name in row if name != "round"]
            yield row | {name: repr(float(row[name]) * factor) for name in names}

    def change(run: RunFolder) -> None:
        rewrite(run.attributed_rounds, lambda rows: list(scaled(rows)))
        pay_otherwise(run, dict.fromkeys(("1000", "1001", "1002"), factor))

    return change


def swap_in(table: str, column: str, one: str, other: str) -> Callable[[RunFolder], None]:
    return lambda run: rewrite(getattr(run, table), swapped(column, one, other))


def copy_own_part(run: RunFolder) -> None:
    """Let bob's updates have the same own part as ada's."""

    def copied(rows):
        return [rows[0], {**rows[0], "client_id": rows[1]["client_id"]}, *rows[2:]]

    rewrite(run.own_parts, copied)


def pay_in_secret(run: RunFolder) -> None:
    """Let other data have paid, which the operator commits to afterwards."""
    salted = {"paying_nonce": "a", "paying_commitment": commitment_of(salt_of("a"))}
    found = {"corrected_noise": 0.07, "examples": 77}
    write("provenance", **salted, paying_held_out=found)(run)
    shutil.rmtree(run.statement)  # It opens no salt.


def measure_at_ends(run: RunFolder) -> None:
    """Let ada gain nothing where fewer labels are wrong, and all others nothing where more are."""
    rows = run.attribution.read()
    for row in rows:
        is_ada = row["client_id"] == "1000"
        for end, is_gained in (("low", not is_ada), ("high", is_ada)):
            gained = "0.5" if is_gained else "0.0"
            row |= {f"contribution_noise_{end}": gained, f"credited_noise_{end}": gained}
    with run.attribution.path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    found = {"examples": 100, "noise": 0.2, "low": 0.1, "high": 0.3, "corrected_noise": 0.2}
    write("provenance", held_out=found)(run)


BOB, BOB_3 = {"client_id": "1001"}, {"round": "3", "client_id": "1001"}
LEFT = {"round": "3", "partition_id": "1", "client_id": "1001", "presence": "revoked"}
REFUSED = {"status": "refused", "weight": "0.0", "rejection": "its length"}
# What is changed, and what of the statement rests on it. Behind the dot are a member's figures.
RESTS_ON: dict[str, tuple[Callable[[RunFolder], None], str]] = {
    "contributions in attribution.csv": (
        lambda run: pay_otherwise(run, {"1000": 0.0, "1001": 1.0, "1002": 9.0}),
        "attributed remainder decisive groups member.contribution "
        "member.credited member.by_class member.equal_part member.other_rounds member.per_draw "
        "member.place member.alike member.own_share member.share member.cents member.intervals "
        "member.draw_intervals member.share_intervals member.verdict members",
    ),
    "credits in attribution.csv": (
        to("attribution", BOB, credited="0.0"),
        "nobody_cents nobody_share member.credited member.share member.cents member.verdict",
    ),
    "losses in attribution_rounds.csv": (
        scale_rounds(0.5),
        "loss_before loss_after decrease attributed remainder decisive",
    ),
    "the last loss in attribution_rounds.csv": (
        raise_loss(6, 30.0),
        "decrease remainder unpaid member.share member.own_share member.cents",
    ),
    "the first loss, with a remainder that leaves a round out": (
        both(
            raise_loss(0, 30.0),
            lambda run: pay_otherwise(run, {"1000": 1.0, "1001": 1.0, "1002": -9.0}),
        ),
        "left_out left_out_decrease attributed member.left_out_harm member.contribution "
        "member.cents",
    ),
    "rounds left out of all tables": (
        lambda run: [
            rewrite(getattr(run, name), without(round="6"))
            for name in ("attribution", "attributed_rounds", "clients", "rounds", "signatures")
        ],
        "rounds loss_after completeness.rounds member.asked member.taken_part member.signed",
    ),
    "which round was decisive": (
        lambda run: (
            rewrite(run.attributed_rounds, lambda rows: rows)
            or pay_otherwise(run, {"1000": 1.0, "1001": 0.0, "1002": -2.0})
        ),
        "decisive_round member.other_rounds",
    ),
    "blocks in attribution.csv": (
        widen_blocks,
        "groups member.alike member.intervals member.draw_intervals member.share_intervals",
    ),
    "held_out_blocks in provenance.json": (
        write("provenance", held_out_blocks=[]),
        "about member.intervals",
    ),
    "held_out_classes in provenance.json": (
        write("provenance", held_out_classes=[0.55, *[0.05] * 9]),
        "held_out.swaps member.mix_interval",
    ),
    "credit.class-shift in config.json": (
        write("config", **{"credit.class-shift": 0.05}),
        "mix member.mix_interval",
    ),
    "contributions with other shares of wrong labels in attribution.csv": (
        measure_at_ends,
        "member.noise_shares member.share_intervals held_out.doubts",
    ),
    "what was found of the held-out set in provenance.json": (
        write(
            "provenance",
            held_out={
                "corrected_noise": 0.07,
                "corrected_by_class": True,
                "by_class": 0.4,
                "transitions": [[0.9, 0.1], [0.05, 0.95]],
                "missing": [3],
                "rare": {"2": 1},
            },
        ),
        "held_out.verdict held_out.unjudged held_out.examples held_out.wrong held_out.wrong_low "
        "held_out.wrong_high held_out.confused held_out.corrected held_out.is_corrected_by_class "
        "held_out.missing held_out.rare held_out.doubts",
    ),
    "what was found of secret data in provenance.json": (
        pay_in_secret,
        "held_out.is_secret held_out.examples held_out.corrected held_out.contradicted",
    ),
    "labels that the last model contradicts in rounds.csv": (
        to("rounds", {"round": "6"}, validation_contradicted="0.123"),
        "held_out.contradicted",
    ),
    "what is usual in attribution.csv": (
        both(
            to("attribution", BOB, length="9.0", weight="9.0", borrowed="9.0", opposed="0.99"),
        ),
        "member.length member.weight member.borrowed member.opposed_rounds member.verdict",
    ),
    "replies in clients.csv": (
        both(
            to("clients", BOB_3, **REFUSED),
            to("rounds", {"round": "3"}, accepted="2", rejected="1"),
        ),
        "completeness.verdict completeness.reasons completeness.members member.taken_part "
        "member.refused member.refusals member.verdict",
    ),
    "replies that did not come": (
        both(
            to("clients", BOB_3, status="away", weight="0.0", rejection="no reply"),
            to("rounds", {"round": "3"}, accepted="2", failed="1"),
        ),
        "completeness.verdict completeness.members member.away",
    ),
    "replies that came late": (
        both(
            to("clients", {"round": "3", "client_id": "1001"}, status="late"),
            to("clients", {"round": "4", "client_id": "1001"}, asked_in="3"),
            to("rounds", {"round": "3"}, accepted="2", late="1"),
        ),
        "is_drawn member.late",
    ),
    "registrations that ended": (
        both(
            to("clients", {"round": "6", **BOB}, status="revoked", weight="0.0"),
            to("rounds", {"round": "6"}, accepted="2", failed="1"),
        ),
        "member.revoked_in",
    ),
    "scores and examples in clients.csv": (
        to("clients", BOB, weight_score="0.99", num_examples="9999"),
        "member.weight_score member.examples",
    ),
    "who held which part": (
        both(
            swap_in("clients", "partition_id", "0", "2"),
            swap_in("attribution", "partition_id", "0", "2"),
        ),
        "member.partition_id member.page",
    ),
    "who it was": (
        both(
            swap_in("clients", "client_id", "1000", "1003"),
            swap_in("attribution", "client_id", "1000", "1003"),
            swap_in("names", "client_id", "1000", "1003"),
        ),
        "member.client_id names",
    ),
    "members that were never asked": (
        lambda run: (
            rewrite(
                run.attendance,
                lambda rows: [*rows, {**rows[0], "partition_id": "7", "client_id": "1007"}],
            )
            or rewrite(run.names, lambda rows: [*rows, {"client_id": "1007", "name": "dan"}])
        ),
        "never_drawn is_drawn names",
    ),
    "registrations that ended while nobody waited for a reply": (
        lambda run: rewrite(run.attendance, lambda rows: [*rows, {**rows[0], **LEFT}]),
        "completeness.verdict completeness.reasons member.revoked_in",
    ),
    "who was there in attendance.csv": (
        lambda run: rewrite(
            run.attendance, lambda rows: [*rows, {**rows[0], **LEFT, "presence": "offline"}]
        ),
        "completeness.members",
    ),
    "settings in config.json": (
        both(
            write("config", **{"least-participation": 1.0}),
            to("clients", BOB_3, status="away", weight="0.0", rejection="no reply"),
            to("rounds", {"round": "3"}, accepted="2", failed="1"),
        ),
        "completeness.verdict",
    ),
    "the strategy in config.json": (
        write("config", strategy="influence-descent"),
        "member.is_weighed_by_length",
    ),
    "own parts in own_parts.csv": (copy_own_part, "member.has_same_part member.verdict"),
    "signatures in signatures.csv": (
        lambda run: rewrite(run.signatures, without(node_id="1001")),
        "member.signed",
    ),
    "names in names.csv": (swap_in("names", "name", "ada", "cyd"), "names member.name"),
}
# What the operator says with the statement: terms of the run config bind it, or it is told.
SAID = {"budget_cents", "first_round", "pay_by", "ties", "held_out.is_accepted"}


def numbers(said: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a statement says, by what it is called above."""
    for name, value in said.items():
        if name in ("completeness", "held_out"):
            yield from ((f"{name}.{inner}", of) for inner, of in value.items())
        elif name == "members":
            yield "members", [member["name"] for member in value]
            for member in value:
                own = member["client_id"]
                yield from ((f"member.{inner}", (own, of)) for inner, of in member.items())
        else:
            yield name, value


def by_name(said: dict[str, Any]) -> dict[str, list[Any]]:
    values_of: dict[str, list[Any]] = {}
    for name, value in numbers(said):
        values_of.setdefault(name, []).append(value)
    return {name: sorted(values, key=repr) for name, values in values_of.items()}


def test_every_number_of_a_statement_is_said_to_rest_on_something(copied, key):
    named = {name for _, names in RESTS_ON.values() for name in names.split()}
    assert by_name(state(copied, key)).keys() == named | SAID


@pytest.mark.parametrize("source", RESTS_ON)
def test_a_number_rests_on_what_members_hold(paid, copied, key, source):
    change, names = RESTS_ON[source]
    before = by_name(state(copied, key))
    change(copied)
    after = by_name(state(copied, key))
    same = [name for name in names.split() if before[name] == after[name]]
    assert same == [], f"{source}: changing it changes none of these"
    with pytest.raises(StatementError):
        verify(copied.path)
    bind_anew(copied, key)
    state(copied, key)
    with pytest.raises(StatementError):
        checked(copied, paid)


@pytest.mark.parametrize("name", NAMES)
def test_the_receipts_of_one_member_are_enough(paid, copied, key, name):
    raise_loss(6, 30.0)(copied)
    bind_anew(copied, key)
    state(copied, key)
    with pytest.raises(StatementError, match="history was rewritten"):
        verify(copied.path, receipts=held(paid, name))


@pytest.mark.parametrize(
    ("key_of", "agreed", "how", "words"),
    [
        ("statement.budget", "900", {}, "shares out 1000.00; members agreed .* = '900'"),
        ("statement.pay-by", "draw", {}, "has pay-by = 'sum'; members agreed to .* = 'draw'"),
        ("statement.ties", "alike", {}, "has ties = 'apart'; members agreed to .* = 'alike'"),
        ("statement.ties", "alike", {"ties": "alike"}, ""),
    ],
)
def test_terms_of_the_run_config_bind_the_statement(
    tmp_path, copy, key, key_of, agreed, how, words
):
    folder = RunFolder(copy)
    folder.config.write({**folder.config.read(), key_of: agreed})
    state(folder, key, **how)
    if words:
        with pytest.raises(StatementError, match=words):
            verify(folder.path)
    else:
        assert verify(folder.path).chosen == ("budget 1000.00", "pay-by sum")
    state(folder, key, from_round=2, **{"ties": "alike"})
    if key_of == "statement.ties":
        assert "from round 2 on" in verify(folder.path).chosen


def test_what_the_server_says_beside_the_run_config_was_not_agreed_to(copied, key):
    """The run config that members agreed to leaves the budget open; config.json is the server's."""
    copied.config.write({**copied.config.read(), "statement.budget": "1000"})
    rewrite(copied.signatures, lambda _: [])  # Who signs heads has signed config.json with them.
    bind_anew(copied, key)
    state(copied, key)
    assert verify(copied.path).chosen == ("budget 1000.00", "pay-by sum", "ties apart")


@pytest.mark.parametrize(
    ("key_of", "said", "words"),
    [
        ("credit.length", 9.0, r"credit.length = 9.0; members agreed to .* credit.length = 1.25"),
        (
            "attribution",
            "off",
            r"attribution = 'off'; members agreed to .* attribution = 'trapezoid'",
        ),
    ],
)
def test_settings_are_those_of_the_run_config_that_was_agreed_on(copied, key, key_of, said, words):
    """Pages say by them how much is credited."""
    copied.config.write({**copied.config.read(), key_of: said})
    bind_anew(copied, key)
    state(copied, key)
    with pytest.raises(StatementError, match=rf"config\.json has {words}"):
        verify(copied.path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text + "\n", "is not written as a run writes it"),
        (lambda text: text[:-1], "is not written as a run writes it"),
        (lambda text: text.replace(",there,", ',"there",'), "is not written as a run writes it"),
        (lambda text: text + "9,0,1000,offline,now\n", "line 5: .* of round 9"),
        (lambda text: text + "-9,0,1000,offline,now\n", ""),
    ],
)
def test_a_table_that_two_readers_read_as_two_is_refused(paid, copied, key, change, words):
    path = copied.attendance.path
    path.write_text(change(path.read_text()), encoding="utf-8")
    state(copied, key)
    with pytest.raises(StatementError, match=f"attendance.csv.*{words}" if words else None):
        checked(copied, paid)


@pytest.mark.parametrize(
    ("table", "column", "value", "words"),
    [
        ("attendance", "presence", "asleep", "'asleep'; allowed: there, offline, revoked, paused"),
        ("attendance", "presence", "", "None; allowed: there, offline, revoked, paused"),
        ("own_parts", "squares", "", "None; allowed: a finite number"),
        ("own_parts", "sketch_3", "much", "'much'; allowed: a finite number"),
        ("own_parts", "sketch_3", "nan", "nan; allowed: a finite number"),
        ("own_parts", "rounds", "2.5", "2.5; allowed: an integer"),
    ],
)
def test_a_cell_that_no_run_writes_is_named(copied, key, table, column, value, words):
    rewrite(getattr(copied, table), altered({"client_id": "1000"}, **{column: value}))
    with pytest.raises(ConfigError, match=rf"{table}\.csv, line 2: {column} = {words}"):
        state(copied, key)


def test_a_table_without_a_column_that_a_statement_needs_is_named(copied, key):
    rewrite(copied.attendance, without_columns("presence"))
    with pytest.raises(ConfigError, match=r"attendance\.csv, line 2: presence = None; allowed: "):
        state(copied, key)


def test_columns_cannot_change_places(paid, copied, key):
    """The rows stay, and their header says that a loss is a remainder."""
    path = copied.attributed_rounds.path
    header, *rows = path.read_text().splitlines()
    assert header.count("decrease") == header.count("attributed") == 1
    other = header.replace("attributed", "x").replace("decrease", "attributed")
    path.write_text("\n".join([other.replace("x", "decrease"), *rows, ""]))
    with pytest.raises(StatementError):
        state(copied, key)
