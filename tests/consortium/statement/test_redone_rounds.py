"""Rounds that were done again: those of a resumed run count, those made up afterwards do not."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from client_app import app as client_app
from fedif_consortium.evidence.keys import read_members
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import ConfigError, StatementError, StorageError
from fedif_flower.messages.instructions import ROUND_KEY
from fedif_flower.run.folder import RunFolder
from fedif_flower.storage import append_line
from tests.consortium.commands.typed import call
from tests.consortium.statement import signed_runs as of
from tests.consortium.statement.paid_runs import checked, state
from tests.consortium.statement.receipted_runs import held, nodes, run, run_and_deliver
from tests.consortium.statement.signed_runs import (
    altered,
    bind_anew,
    declare_attempt,
    pay_otherwise,
    rewrite,
    without,
)
from tests.run.resuming import Killed, killed_at

MORE_FOR_ADA = {"1000": 3.0, "1001": 1.0, "1002": 0.0}


@pytest.mark.parametrize(
    ("is_declared", "words"),
    [
        (False, "round 1 stands behind round 6 of the same attempt, 1"),
        (True, r"rounds 1, 2, 3, 4, 5, 6 were done again .* these members .*: ada, bob, cyd"),
    ],
)
def test_rounds_done_again_on_paper_pay_nobody_else(paid, copied, key, is_declared, words):
    """All of them behind the others, with other contributions, "after a resume"."""
    attempt = declare_attempt(copied) if is_declared else 1
    pay_otherwise(copied, MORE_FOR_ADA)
    bind_anew(copied, key, attempt=attempt, again=True)
    state(copied, key)
    with pytest.raises(StatementError, match=words):
        checked(copied, paid)
    with pytest.raises(StatementError, match=words):
        verify(copied.path)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, key):
    """A server that is killed in round 4 of 5, and does rounds 3 and 4 again."""
    folder = tmp_path_factory.mktemp("resumed")
    of_grid, settings = nodes(folder), {"num_server_rounds": 5, "checkpoint_every": 2}
    with pytest.raises(Killed):
        run(of_grid, folder, key, killed_at(4), **settings)
    run_and_deliver(of_grid, folder, key, resume="auto", **settings)
    return folder


def test_rounds_that_were_done_again_count_where_members_were_told(resumed):
    run_dir, keys = resumed / "runs" / "run", read_members(resumed / "keys")
    for verified in (
        verify(run_dir, members=keys),
        verify(run_dir, receipts=held(resumed)),
        verify(run_dir, members=keys, receipts=held(resumed, "bob")),
    ):
        assert verified.redone == (3, 4)
        assert verified.manifest.agreed.attempt == verified.declared.number == 2
    # Signatures by keys that the operator names itself show nothing.
    for names, missing in (((), "ada, bob, cyd"), (("ada", "cyd"), "bob")):
        folders = [resumed / name for name in names]
        with pytest.raises(StatementError, match=f"rounds 3, 4 were .* covers it: {missing};"):
            verify(run_dir, receipts=folders)
    verified = verify(run_dir, receipts=held(resumed))
    attempts = [[seen.number for seen in member.attempts] for member in verified.receipts]
    assert attempts == [[1, 2]] * 3


@pytest.mark.parametrize("table", ["receipts.csv", "round_heads.csv"])
def test_a_round_whose_head_the_disk_did_not_take_is_done_again(tmp_path, key, monkeypatch, table):
    """The disk is full for one line of round 2: a run that goes on has a head of each round."""
    lines = Counter()

    def full_once(path, line):
        lines[path.name] += 1
        if path.name == table and lines[table] == 2:
            raise StorageError(f"cannot write {path}: No space left on device")
        append_line(path, line)

    monkeypatch.setattr("fedif_consortium.evidence.part.append_line", full_once)
    settings = {"checkpoint_every": 1, "validation.vet": False}
    with pytest.raises(StorageError, match="No space left"):
        run(nodes(tmp_path), tmp_path, key, **settings)
    run_dir = run_and_deliver(nodes(tmp_path), tmp_path, key, **settings, resume="auto")
    heads = RunFolder(run_dir).round_heads.read()
    assert [(head["round"], head["attempt"]) for head in heads] == [
        ("1", "1"),
        ("2", "2"),
        ("3", "2"),
    ]
    verify(run_dir, members=read_members(tmp_path / "keys"), receipts=held(tmp_path))


@pytest.mark.parametrize("fails_in", [1, 2])
def test_a_member_may_fail_in_one_attempt_at_a_round_and_answer_in_another(tmp_path, key, fails_in):
    """A crash, and a member that was away in one of both: nobody lied, and it is verified."""

    def stumbling(message, context):
        told = message.content.get("config", {})
        is_cyd = context.node_config["partition-id"] == 2
        if is_cyd and told.get(ROUND_KEY) == 2 and attempt == fails_in:
            raise RuntimeError("its disk is full")
        return client_app(message, context)

    settings = {"num_server_rounds": 4, "checkpoint_every": 1, "max_failed_rounds": 3}
    attempt = 1
    with pytest.raises(Killed):
        run(nodes(tmp_path, client=stumbling), tmp_path, key, killed_at(2), **settings)
    attempt = 2
    of_grid = nodes(tmp_path, client=stumbling)
    run_dir = run_and_deliver(of_grid, tmp_path, key, **settings, resume="auto")
    keys = read_members(tmp_path / "keys")
    assert verify(run_dir, members=keys, receipts=held(tmp_path)).redone == (2,)
    # What it sent in the other attempt is found as before.
    [sent] = (tmp_path / "cyd").glob(f"*/sent-000002-*-{3 - fails_in}.json")
    told = json.loads(sent.read_text())
    assert (told["round"], told["attempt"]) == (2, 3 - fails_in)


def test_a_member_keeps_what_it_sent_in_each_attempt_though_it_is_the_same(resumed):
    """The same seed gives the same update: that it was sent twice is said twice."""
    for folder in held(resumed):
        for number in (3, 4):
            paths = sorted(folder.glob(f"*/sent-{number:06d}-*.json"))
            assert [json.loads(path.read_text())["attempt"] for path in paths] == [1, 2]


def test_a_resumed_run_cannot_be_resumed_once_more_on_paper(resumed, tmp_path, key):
    again = RunFolder(of.copied(resumed / "runs" / "run", tmp_path / "run"))
    attempt = declare_attempt(again)
    pay_otherwise(again, MORE_FOR_ADA)
    bind_anew(again, key, attempt=attempt, again=True)
    state(again, key)
    with pytest.raises(StatementError, match=r"rounds 1, 2, 3, 4, 5 were .* ada, bob, cyd;"):
        checked(again, resumed)


def test_the_attempt_that_did_better_cannot_be_put_back(resumed, tmp_path, key):
    """The operator drops the heads of the attempt that went on."""
    back = RunFolder(of.copied(resumed / "runs" / "run", tmp_path / "run"))
    rewrite(back.round_heads, lambda rows: [row for row in rows if row["attempt"] == "1"])
    state(back, key)
    with pytest.raises(StatementError, match=r"round 5: receipts\.csv does not say what"):
        checked(back, resumed)


@pytest.fixture(scope="module")
def undelivered(tmp_path_factory, key):
    """A run whose last receipts never came: members know what they sent."""
    folder = tmp_path_factory.mktemp("undelivered")
    run(nodes(folder), folder, key)
    return folder


def drop_the_last_round(run: RunFolder) -> None:
    tables = ("attribution", "attributed_rounds", "clients", "rounds", "signatures")
    for name in tables:
        rewrite(getattr(run, name), without(round="3"))


def leave_out_ada(run: RunFolder, status: str) -> None:
    where = {"round": "3", "client_id": "1000"}
    line = {"status": status, "weight": "0.0", "num_examples": "", "rejection": "no reply"}
    rewrite(run.clients, altered(where, **line))
    rewrite(run.rounds, altered({"round": "3"}, accepted="2", failed="1"))
    for table in (run.signatures, run.attribution):
        rewrite(table, without(**where))
    pay_otherwise(run, dict.fromkeys(("1000", "1001", "1002"), 1.0))


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (drop_the_last_round, "ada sent an update in round 3, and the records end with round 2"),
        (
            lambda run: leave_out_ada(run, "failed"),
            "round 3: ada sent an update, and the records say 'failed'",
        ),
    ],
)
def test_the_last_rounds_are_known_to_those_who_took_part(
    undelivered, tmp_path, key, attack, words
):
    copied = RunFolder(of.copied(undelivered / "runs" / "run", tmp_path / "run"))
    attack(copied)
    bind_anew(copied, key)
    state(copied, key)
    with pytest.raises(StatementError, match=words):
        verify(copied.path, receipts=held(undelivered, "ada"))


def test_a_reply_that_is_said_to_be_missing_is_named(undelivered, tmp_path, key):
    copied = RunFolder(of.copied(undelivered / "runs" / "run", tmp_path / "run"))
    leave_out_ada(copied, "away")
    bind_anew(copied, key)
    state(copied, key)
    assert verify(copied.path, receipts=held(undelivered, "ada")).lost == (("ada", 3),)
    words = "ada sent an update in round 3, and the records say that no reply came"
    assert words in call("verify", copied.path, "--receipts", undelivered / "ada")


def upgraded(monkeypatch) -> None:
    """Let the package be another version from now on."""
    monkeypatch.setattr("fedif_flower.run.provenance.package_hash", lambda: 64 * "0")


def test_an_upgrade_after_the_last_round_changes_nothing_that_members_were_told(
    tmp_path, key, monkeypatch
):
    """The server is killed before the statement is made, and its host upgraded meanwhile."""
    settings = {"checkpoint_every": 1, "num_server_rounds": 2, "validation.vet": False}
    run_dir = run(nodes(tmp_path), tmp_path, key, **settings)
    before = RunFolder(run_dir).provenance.read()
    upgraded(monkeypatch)
    run_and_deliver(nodes(tmp_path), tmp_path, key, **settings, resume="auto")
    after = RunFolder(run_dir).provenance.read()
    assert after["code_sha256"] == before["code_sha256"]
    assert len(after["attempts"]["attempts"]) == 2
    verify(run_dir, members=read_members(tmp_path / "keys"), receipts=held(tmp_path))


def test_an_upgrade_before_a_round_is_bound_by_its_head(tmp_path, key, monkeypatch):
    settings = {"checkpoint_every": 1, "num_server_rounds": 2, "validation.vet": False}
    with pytest.raises(Killed):
        run(nodes(tmp_path), tmp_path, key, killed_at(2), **settings)
    before = RunFolder(tmp_path / "runs" / "run").provenance.read()
    upgraded(monkeypatch)
    run_dir = run_and_deliver(nodes(tmp_path), tmp_path, key, **settings, resume="auto")
    assert RunFolder(run_dir).provenance.read()["code_sha256"] != before["code_sha256"]
    verify(run_dir, members=read_members(tmp_path / "keys"), receipts=held(tmp_path))


def test_settings_do_not_change_after_the_last_round_that_could_bind_them(tmp_path, key):
    settings = {"checkpoint_every": 1, "num_server_rounds": 2, "validation.vet": False}
    run_dir = run(nodes(tmp_path), tmp_path, key, **settings)
    others = {**settings, "least_participation": 0.25, "checkpoint_every": 2, "resume": "auto"}
    words = (
        "least-participation = 0.25, checkpoint-every = 2: every round is done, and members were "
        "told of other settings; allowed: least-participation = 0.5, checkpoint-every = 1"
    )
    with pytest.raises(ConfigError, match=words):
        run(nodes(tmp_path), tmp_path, key, **others)
    run_and_deliver(nodes(tmp_path), tmp_path, key, **settings, resume="auto")
    verify(run_dir, members=read_members(tmp_path / "keys"), receipts=held(tmp_path))
