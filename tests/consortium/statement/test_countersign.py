from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.evidence.dsse import read_envelope
from fedif_consortium.evidence.keys import key_id
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.manifest import OPERATOR
from fedif_consortium.statement.verify import envelope_of, merge_signatures, sign_statement, verify
from fedif_flower.errors import StatementError
from tests.consortium.statement.runs import make_run

KEYS = {
    "hospital-a": ec.generate_private_key(ec.SECP384R1()),
    "hospital-b": Ed25519PrivateKey.generate(),
}
MEMBERS = {name: key.public_key() for name, key in KEYS.items()}
ROUNDS = [{0: 0.5, 1: 0.25}] * 5


@pytest.fixture
def run_dir(tmp_path, key) -> Path:
    """A run with a statement."""
    run_dir = make_run(tmp_path / "run", ROUNDS)
    make_statement(run_dir, key, budget_cents=1000_00)
    return run_dir


def names(path: Path, members=MEMBERS) -> list[str]:
    return [signer.name for signer in verify(path, members=members).signed.signers]


def put(path: Path, envelope) -> None:
    envelope_of(path).write_bytes(envelope.to_bytes())


def test_nothing_is_signed_that_does_not_verify(tmp_path, run_dir):
    before = envelope_of(run_dir).read_bytes()
    (tmp_path / "own").mkdir()
    shutil.copy(envelope_of(run_dir), tmp_path / "own")
    page = tmp_path / "own" / "statement.html"
    shutil.copy(run_dir / "statement" / "members" / "001.html", page)
    with pytest.raises(StatementError, match="signed by another key"):
        sign_statement(run_dir, KEYS["hospital-a"], operator="aaaa bbbb")
    page.write_text(page.read_text() + " ")
    (run_dir / "clients.csv").write_text("")
    for path in (run_dir, page):
        with pytest.raises(StatementError, match="was changed"):
            sign_statement(path, KEYS["hospital-a"])
        assert envelope_of(path).read_bytes() == before


def test_a_member_cannot_deny_what_it_signed(run_dir):
    """Its signature is checked by its public key, and no other key makes one that fits."""
    sign_statement(run_dir, KEYS["hospital-a"])
    assert names(run_dir) == [OPERATOR, "hospital-a"]
    swapped = {"hospital-a": MEMBERS["hospital-b"], "hospital-b": MEMBERS["hospital-a"]}
    assert names(run_dir, swapped) == [OPERATOR, "hospital-b"]
    envelope = read_envelope(envelope_of(run_dir).read_bytes(), "")
    first, own = envelope.signatures
    # Nor does it under another key's id: who takes a signature over is found out.
    as_b = own.model_copy(update={"keyid": key_id(MEMBERS["hospital-b"])})
    put(run_dir, envelope.model_copy(update={"signatures": (first, as_b)}))
    with pytest.raises(StatementError, match="signature of hospital-b does not fit"):
        verify(run_dir, members=MEMBERS)


def test_a_signature_of_another_statement_is_false(run_dir, tmp_path, key):
    sign_statement(run_dir, KEYS["hospital-a"])
    copied = read_envelope(envelope_of(run_dir).read_bytes(), "").signatures[1]
    other = make_run(tmp_path / "other", ROUNDS)
    make_statement(other, key)
    sent = tmp_path / "sent.json"
    shutil.copy(envelope_of(run_dir), sent)
    with pytest.raises(StatementError, match=r"sent\.json: it is of another statement"):
        merge_signatures(other, [sent], MEMBERS)
    own = read_envelope(envelope_of(other).read_bytes(), "")
    sent.write_bytes(own.with_signature(copied.keyid, copied.sig).to_bytes())
    with pytest.raises(StatementError, match=r"sent\.json: the signature of hospital-a does not"):
        merge_signatures(other, [sent], MEMBERS)
    assert names(other) == [OPERATOR]
    shutil.copy(sent, envelope_of(other))
    with pytest.raises(StatementError, match="the signature of hospital-a does not fit"):
        verify(other, members=MEMBERS)
    assert names(other, {}) == [OPERATOR, ""]


def test_what_is_no_manifest_or_of_a_stranger_is_not_taken(run_dir, tmp_path):
    sent = tmp_path / "sent.json"
    for content in (b"{}", b"x" * (2**20 + 1)):
        sent.write_bytes(content)
        with pytest.raises(StatementError, match=r"sent\.json"):
            merge_signatures(run_dir, [sent], MEMBERS)
    sign_statement(run_dir, Ed25519PrivateKey.generate())
    shutil.copy(envelope_of(run_dir), sent)
    with pytest.raises(StatementError, match=r"a signature with key '.*', which is no member's"):
        merge_signatures(run_dir, [sent], MEMBERS)
