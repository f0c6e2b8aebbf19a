from __future__ import annotations

import shutil

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from typer.testing import CliRunner

from fedif_consortium.evidence.keys import fingerprint, key_id
from fedif_studies.commands import cli
from tests.consortium.statement.runs import make_run


def call(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def member(tmp_path) -> ec.EllipticCurvePrivateKey:
    """A member's key, `node.key`, and its public half in `members/`."""
    key = ec.generate_private_key(ec.SECP384R1())
    path = tmp_path / "node.key"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    (tmp_path / "members").mkdir()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (tmp_path / "members" / "hospital-a.pub").write_bytes(public)
    return key


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
    mine = fingerprint(member.public_key())
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
    keyid = key_id(member.public_key())
    unknown = f"Not checked: a signature with key {keyid}; --members says whose it is"
    assert call("verify", page).splitlines()[2] == unknown
