"""What members sign: an operator who rewrites the records, and signs them again, is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedif_consortium.evidence.check_signatures import SignedMember
from fedif_consortium.evidence.keys import read_members, read_private_key
from fedif_consortium.evidence.signed import SignedUpdate
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import StatementError
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement import signed_runs as of
from tests.consortium.statement.signed_runs import NAMES, ROUNDS, altered, rewrite, swapped, without


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return of.write_keys(tmp_path_factory.mktemp("keys") / "keys")


@pytest.fixture(scope="module")
def signed_run(tmp_path_factory, keys):
    return of.run(of.nodes(keys), tmp_path_factory.mktemp("signed"))


@pytest.fixture
def copied(signed_run, tmp_path) -> RunFolder:
    return RunFolder(of.copied(signed_run, tmp_path / "run"))


def test_every_update_is_checked_by_keys_from_elsewhere(copied, keys, key):
    page = (make_statement(copied.path, key) / "statement.html").read_text()
    assert page.count("all signed") == 3
    expected = tuple(SignedMember(name, ROUNDS, ROUNDS) for name in NAMES)
    assert verify(copied.path, members=read_members(keys)).members == expected
    assert verify(copied.path).members == expected
    with pytest.raises(StatementError, match=r"round 1: the update of bob .* no member's"):
        verify(copied.path, members=read_members(keys / "ada.pub"))


def repeat_round_1(rows):
    """Let ada's update of round 1 stand for that of round 2."""
    first = next(row for row in rows if (row["round"], row["node_id"]) == ("1", "1000"))
    return [*without(round="2", node_id="1000")(rows), {**first, "round": "2"}]


def got_another_model(run: RunFolder, keys):
    """Let bob sign, truly, that it got another model than the others in round 2."""
    where = {"round": "2", "client_id": "1001"}
    (row,) = (row for row in run.signatures.read() if where.items() <= row.items())
    was = SignedUpdate.read(str(run.provenance.read()["run_id"]), row)
    said = was.model_dump(exclude={"key", "signature"}) | {"received": b"x" * 32}
    told = SignedUpdate.by(read_private_key((keys / "bob").read_bytes(), "bob"), **said)
    return altered(where, received=told.received.hex(), signature=told.signature.hex())


ADA_2, BOB_3 = {"round": "2", "node_id": "1000"}, {"round": "3", "client_id": "1001"}
AWAY = {"status": "away", "weight": "0.0", "num_examples": "", "rejection": "no reply"}
OTHER = "is not the one that was signed"
ATTACKS = [
    ("signatures", altered(ADA_2, sent="00" * 32), f"round 2: the update of ada {OTHER}"),
    ("signatures", altered({"round": "3"}, asked_in="9"), f"round 3: the update of .* {OTHER}"),
    ("signatures", repeat_round_1, "round 2: the update of ada .* that it signed for round 1"),
    ("signatures", without(**ADA_2), "round 2: the update of ada is not signed, though this mem"),
    ("signatures", without(node_id="1001"), "round 1: the update of bob is not signed, though"),
    ("signatures", swapped("client_id", "1000", "1001"), "of bob is the one that ada signed"),
    ("signatures", lambda rows: [*rows, rows[0]], "signatures.csv, line 11: .*it is there twice"),
    ("signatures", None, "round 2: members were sent different models"),
    ("clients", altered(BOB_3, **AWAY), "of bob was signed, and clients.csv has no such reply"),
    (
        "clients",
        altered({"client_id": "1002"}, num_examples="5"),
        "examples, and clients.csv has",
    ),
    ("names", swapped("name", "ada", "bob"), "round 1: the update of bob .* with the key of ada"),
]


@pytest.mark.parametrize(("table", "change", "found"), ATTACKS)
def test_a_changed_update_is_named_though_the_operator_signs_again(
    copied, keys, key, table, change, found
):
    rewrite(getattr(copied, table), change or got_another_model(copied, keys))
    make_statement(copied.path, key)
    with pytest.raises(StatementError, match=found):
        verify(copied.path, members=read_members(keys))


def test_masked_updates_are_signed_too(keys, key, tmp_path):
    run_dir = of.run(of.nodes(keys), tmp_path, **{"masking.mode": "trial"})
    make_statement(run_dir, key)
    assert [m.signed for m in verify(run_dir, members=read_members(keys)).members] == [ROUNDS] * 3


@pytest.fixture(scope="module")
def kept_run(tmp_path_factory, keys):
    """Two rounds, their replies kept; bob's update is far too long, and was shortened."""
    nodes = of.nodes(keys, configs={1: {"attack": "honest-scaling"}})
    folder = tmp_path_factory.mktemp("kept")
    return of.run(nodes, folder, num_server_rounds=2, **{"updates.keep": True})


def change_reply(path):
    with np.load(path) as content:
        arrays = dict(content)
    name = next(name for name in arrays if name.startswith("1000/"))
    np.savez(path, **{**arrays, name: arrays[name] + 1})


def change_update(path):
    content = torch.load(path, weights_only=True)
    content["updates"][0] *= -1.0
    torch.save(content, path)


@pytest.mark.parametrize(
    ("file", "change", "found"),
    [
        ("sent-000001.npz", lambda path: None, ""),
        ("sent-000001.npz", change_reply, f"the kept update of client 1000 {OTHER}"),
        ("sent-000001.npz", lambda path: path.unlink(), f"the kept update of client 1000 {OTHER}"),
        ("round-000001.pt", change_update, "of client 1000, which was used, is not what it sent"),
    ],
)
def test_a_kept_update_that_is_not_the_signed_one_is_named(
    kept_run, keys, key, tmp_path, file, change, found
):
    run = RunFolder(of.copied(kept_run, tmp_path / "run"))
    change(run.updates / file)
    make_statement(run.path, key)
    if found:
        with pytest.raises(StatementError, match=f"round 1: .*{found}"):
            verify(run.path)
    else:
        checked = verify(run.path, members=read_members(keys))
        assert [m.signed for m in checked.members] == [2] * 3
        assert {"updates/round-000001.pt", f"updates/{file}"} <= set(checked.manifest.files)
