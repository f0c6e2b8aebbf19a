from __future__ import annotations

import shutil

import pytest

from fedif_consortium.evidence.attempts import config_hash
from fedif_consortium.evidence.bound_rows import RUN_CONFIG
from fedif_consortium.evidence.keys import (
    fingerprint,
    key_id,
    load_key,
    load_or_make_key,
    read_key_file,
)
from fedif_consortium.federation.records import make_node_key, public_line
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from fedif_flower.storage import write_private
from tests.consortium.commands.typed import call
from tests.consortium.statement.runs import make_run


def test_a_statement_is_made_signed_collected_and_checked(tmp_path, monkeypatch):
    write_private(tmp_path / "node.key", make_node_key())
    key = read_key_file(tmp_path / "node.key", "key")
    (tmp_path / "members").mkdir()
    (tmp_path / "members" / "hospital-a.pub").write_text(public_line(key, "hospital-a"))
    member = key.public_key()
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}] * 5)
    made = call("statement", run_dir, "--key", tmp_path / "operator.pem", "--budget", "9")
    operator = made.splitlines()[-1].removeprefix("Signed by: ")
    (tmp_path / "mine").mkdir()
    page, mine = tmp_path / "mine" / "statement.html", fingerprint(member)
    shutil.copy(run_dir / "statement" / "members" / "001.html", page)
    manifest = shutil.copy(run_dir / "statement" / "manifest.intoto.json", page.parent)
    given = ("--key", tmp_path / "node.key", "--operator", operator)
    signed = call("statement", "sign", page, *given).splitlines()
    assert signed == [f"Signed by: {mine}", f"Send this to the operator: {manifest}"]
    members = ("--members", tmp_path / "members")
    collected = ("statement", "merge", run_dir, manifest, *members)
    assert call(*collected) == "Added: hospital-a\n"
    assert call(*collected) == "Was there: hospital-a\n"
    signers = call("verify", run_dir, *members).splitlines()[1:3]
    assert signers == [f"Signed by: {operator}, the operator", f"Signed by: {mine}, hospital-a"]
    unknown = f"Not checked: a signature with key {key_id(member)}; --members says whose it is"
    assert call("verify", page).splitlines()[2] == unknown
    monkeypatch.setattr("fedif_consortium.statement.pages.made_with", str)
    assert "Made by another version, so not checked" in call("verify", run_dir)


def test_the_last_line_says_what_was_checked_and_what_was_not(tmp_path):
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}] * 5)
    config = RunFolder(run_dir).config
    config.write({**config.read(), "num-server-rounds": 7})
    key = tmp_path / "operator.pem"
    call("statement", run_dir, "--key", key)
    operator = fingerprint(load_key(key).public_key())
    whose, same = "that the key is the operator's (--key)", "To compare with other members"
    *_, early, digest, last = call("verify", run_dir).splitlines()
    assert early == "The records end with round 5, and the run has num-server-rounds = 7: ask why"
    assert digest.startswith(same)
    records = "the records agree with each other and with the account, as the key above signed them"
    assert last == (
        f"Checked: {records}. Not checked: {whose}; that members sent these updates (--members); "
        "that the records were not rewritten (there are no receipts); weights and contributions "
        "(fedif replay)"
    )
    (run_dir / "model.pt").unlink()
    last = call("verify", run_dir).splitlines()[-1]
    assert f"Not checked: {whose}; the files that are not here; that members sent" in last
    page = run_dir / "statement" / "members" / "001.html"
    shutil.copy(run_dir / "statement" / "manifest.intoto.json", page.parent)
    *_, of_page, last = call("verify", page, "--key", operator).splitlines()
    assert of_page == digest
    assert last == (
        "Checked: this is a page of the statement that the operator's key above signed. Not "
        "checked: that it follows from the records (verify the run's folder)"
    )
    (page.parent / "manifest.intoto.json").unlink()
    alone = shutil.copytree(run_dir / "statement", tmp_path / "alone")
    last = call("verify", alone).splitlines()[-1]
    files = "the statement's files are as the operator's key above signed them"
    assert last.startswith(f"Checked: {files}. Not checked: {whose}; that it follows from")


def test_a_statement_is_signed_with_the_key_that_members_know(tmp_path, monkeypatch):
    """Made by hand as by the run: with the federation's key, never with one of the home folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    federation = tmp_path / "server"
    monkeypatch.setenv("FEDIF_FEDERATION", str(federation))
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}] * 5)
    lacking = r"has no statement-key\.pem, by which members know the operator"
    with pytest.raises(ConfigError, match=lacking):
        call("statement", run_dir)
    call("federation", "init", "consortium", "localhost", "--listen", "127.0.0.1:1")
    signed = call("statement", run_dir).splitlines()[-1]
    own = fingerprint(load_key(federation / "statement-key.pem").public_key())
    assert signed == f"Signed by: {own}"
    assert not (tmp_path / "home").exists()

    monkeypatch.delenv("FEDIF_FEDERATION")
    not_there = f"its earlier statement is signed with the key {own}, and key = .* is missing: name"
    with pytest.raises(ConfigError, match=not_there):
        call("statement", run_dir, "--again")
    assert not (tmp_path / "home").exists()  # No key is made that nobody knows.
    other = load_or_make_key(tmp_path / "other.pem")
    theirs = fingerprint(other.public_key())
    another = f"earlier statement is signed with the key {own}, not with {theirs}"
    with pytest.raises(ConfigError, match=another):
        call("statement", run_dir, "--again", "--key", tmp_path / "other.pem")
    assert not (run_dir / "statement-1").exists()
    call("statement", run_dir, "--again", "--key", federation / "statement-key.pem")


def test_held_out_data_that_are_not_to_be_paid_by_take_a_word(tmp_path):
    wrong = {"corrected_noise": 0.0, "examples": 90, "noise": 0.3, "low": 0.2, "high": 0.4}
    rounds = [{0: 0.5, 1: 0.25}] * 5
    run_dir = make_run(tmp_path / "run", rounds, provenance={"held_out": wrong})
    key = ("--key", tmp_path / "operator.pem")
    with pytest.raises(ConfigError, match=r"not to be paid by: .*; --accept-held-out goes on"):
        call("statement", run_dir, *key)
    call("statement", run_dir, *key, "--accept-held-out")
    assert "not in the run config: pay-by sum, ties apart, a held-out set that is not to be" in (
        call("verify", run_dir)
    )


def test_what_members_agreed_to_needs_not_be_said_again(tmp_path, monkeypatch):
    """Else a statement made by hand is one that nobody can verify."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    agreed = {
        "attribution": "simpson",
        "statement.budget": "7.50",
        "statement.contact": "Ada Holm",
        "statement.pay-by": "draw",
        "statement.ties": "alike",
    }
    attempt = {"run": "0" * 32, "config": config_hash(agreed)}
    attempts = {"name": "run", "attempts": [attempt]}
    provenance = {"attempts": attempts, RUN_CONFIG: agreed, "run_id": "0" * 32}
    run_dir = make_run(tmp_path / "runs" / "run", [{0: 0.5, 1: 0.25}] * 5, provenance=provenance)
    config = RunFolder(run_dir).config
    config.write(config.read() | agreed)
    key = ("--key", tmp_path / "operator.pem")
    said = call("statement", run_dir, *key)
    assert f"Members get their pages by the next run into {tmp_path / 'runs'}" in said
    assert "Chosen with the statement" not in call("verify", run_dir)
    page = (run_dir / "statement" / "members" / "001.html").read_text()
    assert "5.00" in page  # Two thirds of it.
    assert "Ada Holm" in page
    call("statement", run_dir, *key, "--again", "--contact", "Bo Berg")
    assert "Bo Berg" in (run_dir / "statement" / "members" / "001.html").read_text()


@pytest.mark.parametrize("given", ["", "  "])
def test_a_fingerprint_that_is_empty_is_refused(given, tmp_path):
    """``--key "$KEY"`` with a variable that is not set would compare nothing."""
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}] * 5)
    call("statement", run_dir, "--key", tmp_path / "operator.pem")
    with pytest.raises(ConfigError, match=r"^--key is empty; allowed: a key's fingerprint"):
        call("verify", run_dir, "--key", given)
    own = ("--key", tmp_path / "operator.pem")
    with pytest.raises(ConfigError, match=r"^--operator is empty"):
        call("statement", "sign", run_dir, *own, "--operator", given)
    assert call("verify", run_dir).startswith("Unchanged")
