"""What members sign: an operator who rewrites the records, and signs them again, is found."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedif_consortium.evidence.check_signatures import SignedMember
from fedif_consortium.evidence.keys import read_members, read_private_key
from fedif_consortium.evidence.signed_update import SignedUpdate
from fedif_consortium.parts import run_parts
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import StatementError
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.signed_runs import (
    NAMES,
    ROUNDS,
    altered,
    config,
    copied,
    nodes,
    rewrite,
    swapped,
    without,
    write_keys,
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "keys"
    write_keys(folder)
    return folder


@pytest.fixture(scope="module")
def signed_run(tmp_path_factory, keys):
    return run_federation(nodes(keys), config(tmp_path_factory.mktemp("signed")), parts=run_parts())


def test_every_update_is_checked_by_keys_from_elsewhere(signed_run, keys, key, tmp_path):
    run_dir = copied(signed_run, tmp_path / "run")
    page = (make_statement(run_dir, key) / "statement.html").read_text()
    assert page.count("all signed") == 3
    expected = tuple(SignedMember(name, ROUNDS, ROUNDS) for name in NAMES)
    assert verify(run_dir, members=read_members(keys)).members == expected
    assert verify(run_dir).members == expected
    assert (
        json.loads((run_dir / "statement" / "statement.json").read_text())["members"][0]["signed"]
        == ROUNDS
    )


def repeat_round_1(rows):
    """Let ada's update of round 1 stand for that of round 2."""
    first = next(row for row in rows if (row["round"], row["node_id"]) == ("1", "1000"))
    return [*without(round="2", node_id="1000")(rows), {**first, "round": "2"}]


AWAY = {"status": "away", "weight": "0.0", "num_examples": "", "rejection": "no reply"}
ATTACKS = [
    (
        "signatures",
        altered({"round": "2", "node_id": "1000"}, sent="00" * 32),
        "round 2: the update of ada is not the one that was signed",
    ),
    (
        "signatures",
        repeat_round_1,
        "round 2: the update of ada is the one that it signed for round 1",
    ),
    (
        "signatures",
        without(round="2", node_id="1000"),
        "round 2: the update of ada is not signed, though this member has a key",
    ),
    (
        "signatures",
        altered({"round": "3"}, asked_in="9"),
        "round 3: the update of .* is not the one that was signed",
    ),
    (
        "signatures",
        swapped("client_id", "1000", "1001"),
        "round 1: the update of bob is the one that ada signed",
    ),
    ("signatures", lambda rows: [*rows, rows[0]], "signatures.csv, line 11: .*it is there twice"),
    ("signatures", without(node_id="1001"), "round 1: the update of bob is not signed, though"),
    (
        "clients",
        altered({"round": "3", "client_id": "1001"}, **AWAY),
        "round 3: the update of bob was signed, and clients.csv has no such reply",
    ),
    (
        "clients",
        altered({"client_id": "1002"}, num_examples="5000"),
        "round 1: the update of cyd was signed with .* examples, and clients.csv has 5000",
    ),
    (
        "names",
        swapped("name", "ada", "bob"),
        "round 1: the update of bob is signed with the key of ada",
    ),
]


@pytest.mark.parametrize(("table", "change", "found"), ATTACKS)
def test_a_changed_update_is_named_though_the_operator_signs_again(
    signed_run, keys, key, tmp_path, table, change, found
):
    run = RunFolder(copied(signed_run, tmp_path / "run"))
    rewrite(getattr(run, table), change)
    make_statement(run.path, key)
    with pytest.raises(StatementError, match=found):
        verify(run.path, members=read_members(keys))


def test_a_strangers_key_is_no_members(signed_run, keys, key, tmp_path):
    run_dir = copied(signed_run, tmp_path / "run")
    make_statement(run_dir, key)
    with pytest.raises(StatementError, match=r"round 1: the update of bob .* no member's"):
        verify(run_dir, members=read_members(keys / "ada.pub"))


def test_masked_updates_are_signed_too(keys, key, tmp_path):
    run_dir = run_federation(
        nodes(keys), config(tmp_path, **{"masking.mode": "trial"}), parts=run_parts()
    )
    make_statement(run_dir, key)
    assert [m.signed for m in verify(run_dir, members=read_members(keys)).members] == [ROUNDS] * 3


def test_members_who_were_sent_different_models_are_found(signed_run, keys, key, tmp_path):
    """Each signed truly what it got: the server told them different things."""
    run = RunFolder(copied(signed_run, tmp_path / "run"))
    bob = read_private_key((keys / "bob").read_bytes(), "bob")

    def sent_another(rows):
        row = next(r for r in rows if (r["round"], r["client_id"]) == ("2", "1001"))
        was = SignedUpdate.read(str(run.provenance.read()["run_id"]), row)
        said = was.model_dump(exclude={"key", "signature"}) | {"received": b"x" * 32}
        told = SignedUpdate.by(bob, **said)
        other = {"received": told.received.hex(), "signature": told.signature.hex()}
        return [{**r, **other} if r is row else r for r in rows]

    rewrite(run.signatures, sent_another)
    make_statement(run.path, key)
    with pytest.raises(StatementError, match="round 2: members were sent different models"):
        verify(run.path, members=read_members(keys))


@pytest.fixture(scope="module")
def kept_run(tmp_path_factory, keys):
    """One round, its replies kept; bob's update is far too long, and was shortened."""
    folder = tmp_path_factory.mktemp("kept")
    configs = {1: {"attack": "honest-scaling"}}
    settings = config(folder, num_server_rounds=2, **{"updates.keep": True})
    return run_federation(nodes(keys, configs=configs), settings, parts=run_parts())


def test_the_updates_that_a_run_kept_are_those_that_were_signed(kept_run, keys, key, tmp_path):
    run_dir = copied(kept_run, tmp_path / "run")
    make_statement(run_dir, key)
    found = verify(run_dir, members=read_members(keys))
    assert [m.signed for m in found.members] == [2] * 3
    assert {"updates/round-000001.pt", "updates/sent-000001.npz"} <= set(found.manifest.files)


def kept_changes(run: RunFolder, what: str) -> str:
    """Change what was kept of round 1; return what is found."""
    path = run.updates / "sent-000001.npz"
    if what == "reply":
        with np.load(path) as content:
            arrays = dict(content)
        name = next(name for name in arrays if name.startswith("1000/"))
        arrays[name] = arrays[name] + 1
        np.savez(path, **arrays)
        return "round 1: the kept update of client 1000 is not the one that was signed"
    if what == "missing":
        path.unlink()
        return "round 1: the reply of client 1000 is missing"
    of_step = run.updates / "round-000001.pt"
    content = torch.load(of_step, weights_only=True)
    content["updates"][0] *= -1.0
    torch.save(content, of_step)
    return "round 1: the kept update of client 1000, which was used, is not what it sent"


@pytest.mark.parametrize("what", ["reply", "missing", "update"])
def test_a_kept_update_that_is_not_the_signed_one_is_named(kept_run, key, tmp_path, what):
    run = RunFolder(copied(kept_run, tmp_path / "run"))
    found = kept_changes(run, what)
    make_statement(run.path, key)
    with pytest.raises(StatementError, match=found):
        verify(run.path)
