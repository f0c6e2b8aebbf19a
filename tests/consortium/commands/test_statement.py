from __future__ import annotations

import shutil

import pytest

from fedif_consortium.evidence.keys import VerifyingKey, fingerprint, key_id, read_key_file
from fedif_consortium.federation.records import make_node_key, public_line
from fedif_flower.storage import write_private
from tests.consortium.commands.typed import call
from tests.consortium.statement.runs import make_run


@pytest.fixture
def member(tmp_path) -> VerifyingKey:
    """A member's public key, in `members/`; the private one is `node.key`."""
    path = tmp_path / "node.key"
    write_private(path, make_node_key())
    key = read_key_file(path, "key")
    (tmp_path / "members").mkdir()
    (tmp_path / "members" / "hospital-a.pub").write_text(public_line(key, "hospital-a"))
    return key.public_key()


def test_a_statement_is_made_signed_collected_and_checked(tmp_path, member):
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}] * 5)
    made = call("statement", run_dir, "--key", tmp_path / "operator.pem", "--budget", "9")
    operator = made.splitlines()[-1].removeprefix("Signed by: ")
    (tmp_path / "mine").mkdir()
    page, manifest = tmp_path / "mine" / "statement.html", "manifest.intoto.json"
    shutil.copy(run_dir / "statement" / "members" / "001.html", page)
    shutil.copy(run_dir / "statement" / manifest, page.parent)
    signed = call(
        *("statement", "sign", page, "--key", tmp_path / "node.key", "--operator", operator)
    )
    mine = fingerprint(member)
    assert signed.splitlines() == [
        f"Signed by: {mine}",
        f"Send this to the operator: {page.parent / manifest}",
    ]
    members = ("--members", tmp_path / "members")
    collected = ("statement", "merge", run_dir, page.parent / manifest, *members)
    assert call(*collected) == "Added: hospital-a\n"
    assert call(*collected) == "Was there: hospital-a\n"
    assert call("verify", run_dir, *members).splitlines()[1:3] == [
        f"Signed by: {operator}, the operator",
        f"Signed by: {mine}, hospital-a",
    ]
    keyid = key_id(member)
    unknown = f"Not checked: a signature with key {keyid}; --members says whose it is"
    assert call("verify", page).splitlines()[2] == unknown
