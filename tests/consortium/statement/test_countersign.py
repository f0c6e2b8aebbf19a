from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedif_consortium.evidence import dsse
from fedif_consortium.evidence.dsse import Envelope, read_envelope
from fedif_consortium.evidence.keys import key_id, public_der, sign
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.countersign import merge_signatures, sign_statement
from fedif_consortium.statement.manifest import ENVELOPE, OPERATOR
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import EvidenceError, StatementError

ADA, BOB = ec.generate_private_key(ec.SECP384R1()), Ed25519PrivateKey.generate()
MEMBERS = {"ada": ADA.public_key(), "bob": BOB.public_key()}


def names(path: Path, members=MEMBERS) -> list[str]:
    return [signer.name for signer in verify(path, members=members).signed.signers]


def manifest(run_dir: Path) -> Path:
    return run_dir / "statement" / ENVELOPE


def envelope(run_dir: Path) -> Envelope:
    return read_envelope(manifest(run_dir).read_bytes(), "")


def test_nothing_is_signed_that_does_not_verify(tmp_path, copy):
    before, page = envelope(copy), tmp_path / "statement.html"
    shutil.copy(manifest(copy), tmp_path)
    page.write_text((copy / "statement" / "members" / "001.html").read_text() + " ")
    with pytest.raises(StatementError, match="signed by another key"):
        sign_statement(copy, ADA, operator="aaaa bbbb")
    (copy / "clients.csv").write_text("")
    for path in (copy, page):
        with pytest.raises(StatementError, match="was changed"):
            sign_statement(path, ADA)
    assert before == envelope(copy) == read_envelope((tmp_path / ENVELOPE).read_bytes(), "")


def test_a_member_cannot_deny_what_it_signed(copy):
    """Its signature is checked by its public key, and no other key makes one that fits."""
    sign_statement(copy, ADA)
    assert names(copy) == [OPERATOR, "ada"]
    assert names(copy, {"ada": BOB.public_key(), "bob": ADA.public_key()}) == [OPERATOR, "bob"]
    first, own = envelope(copy).signatures
    # Nor does it under another key's id: who takes a signature over is found out.
    as_bob = own.model_copy(update={"keyid": key_id(BOB.public_key())})
    changed = envelope(copy).model_copy(update={"signatures": (first, as_bob)})
    manifest(copy).write_bytes(changed.to_bytes())
    with pytest.raises(StatementError, match="signature of bob does not fit"):
        verify(copy, members=MEMBERS)


def test_one_key_is_one_signer_however_often_it_signed(copy):
    """ECDSA signs with a new number each time, and an envelope need not name a signature's key."""
    sign_statement(copy, ADA)
    before = envelope(copy)
    for _ in range(2):
        before = before.with_signature("", sign(ADA, before.signed_bytes()))
    manifest(copy).write_bytes(before.to_bytes())
    assert names(copy) == [OPERATOR, "ada"]
    assert len(names(copy, {})) == 3  # Of nobody known: with her key's id, and without any.


def test_a_signature_of_another_statement_is_false(copy, tmp_path, key):
    sign_statement(copy, ADA)
    sent = shutil.copy(manifest(copy), tmp_path / "sent.json")
    (own,) = envelope(copy).signatures[1:]
    make_statement(copy, key, again=True)
    with pytest.raises(StatementError, match=r"sent\.json: it is of another statement"):
        merge_signatures(copy, [sent], MEMBERS)
    sent.write_bytes(envelope(copy).with_signature(own.keyid, own.sig).to_bytes())
    with pytest.raises(StatementError, match=r"sent\.json: the signature of ada does not fit"):
        merge_signatures(copy, [sent], MEMBERS)
    assert names(copy) == [OPERATOR]
    shutil.copy(sent, manifest(copy))
    with pytest.raises(StatementError, match="the signature of ada does not fit"):
        verify(copy, members=MEMBERS)
    assert names(copy, {}) == [OPERATOR, ""]


def test_what_is_no_manifest_or_of_a_stranger_is_not_taken(copy, tmp_path):
    sign_statement(copy, Ed25519PrivateKey.generate())
    of_stranger, sent = manifest(copy).read_bytes(), tmp_path / "sent.json"
    for content in (b"{}", b"x" * (2**20 + 1), of_stranger):
        sent.write_bytes(content)
        with pytest.raises(StatementError, match=r"sent\.json.*(no signed|more than|no memb)"):
            merge_signatures(copy, [sent], MEMBERS)


def test_an_operator_s_key_that_is_nobody_s_makes_no_statement(copy):
    """The identity point: the one signature fits whatever the manifest says."""
    before = envelope(copy)
    point = bytes([1]) + bytes(31)
    key = Ed25519PublicKey.from_public_bytes(point)
    own = json.loads(before.payload)["predicate"]["publicKey"].encode()
    payload = before.payload.replace(own, base64.b64encode(public_der(key)))
    forged = before.model_copy(update={"payload": payload, "signatures": ()})
    manifest(copy).write_bytes(forged.with_signature(key_id(key), point + bytes(32)).to_bytes())
    with pytest.raises(StatementError, match="a public key of another kind"):
        verify(copy)


def test_more_signatures_than_a_statement_may_have_are_not_merged(copy, tmp_path, monkeypatch):
    """Nobody could read the manifest afterwards, the operator included."""
    before, sent = envelope(copy), []
    for name, key in (("ada", ADA), ("bob", BOB)):
        sent.append(tmp_path / f"{name}.json")
        sent[-1].write_bytes(before.signed_by(key).to_bytes())
    monkeypatch.setattr(dsse, "MOST_SIGNATURES", 2)
    with pytest.raises(StatementError, match=r"bob\.json: there are 2 signatures already"):
        merge_signatures(copy, sent, MEMBERS)
    assert envelope(copy) == before
    assert merge_signatures(copy, sent[:1], MEMBERS) == {"ada": True}
    with pytest.raises(EvidenceError, match="there are 2 signatures already"):
        sign_statement(copy, BOB)
    assert names(copy) == [OPERATOR, "ada"]
