from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.evidence.dsse import MOST_SIGNATURES, Envelope, read_envelope
from fedif_consortium.evidence.keys import key_id
from fedif_flower.errors import EvidenceError

KEYS = {
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "P-384": ec.generate_private_key(ec.SECP384R1()),
    "P-521": ec.generate_private_key(ec.SECP521R1()),
    "Ed25519": Ed25519PrivateKey.generate(),
}
PUBLIC = {name: key.public_key() for name, key in KEYS.items()}
EMPTY = Envelope(payload_type="text/plain", payload=b"content")


def signed_by_all(envelope: Envelope) -> Envelope:
    for key in KEYS.values():
        envelope = envelope.signed_by(key)
    return envelope


def test_what_is_signed_is_the_standard_s_example():
    # From protocol.md of DSSE.
    envelope = Envelope(payload_type="http://example.com/HelloWorld", payload=b"hello world")
    assert envelope.signed_bytes() == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_signatures_stand_side_by_side_and_each_is_somebody_s():
    envelope = signed_by_all(EMPTY)
    assert [envelope.signer(one, PUBLIC) for one in envelope.signatures] == list(KEYS)
    assert [one.keyid for one in envelope.signatures] == [key_id(key) for key in PUBLIC.values()]
    other = {"P-384": PUBLIC["P-384"]}
    assert [envelope.signer(one, other) for one in envelope.signatures] == ["", "P-384", "", ""]


def test_a_signature_of_other_content_is_nobody_s_or_false():
    other = Envelope(payload_type="text/plain", payload=b"other content")
    (copied,) = other.signed_by(KEYS["P-384"]).signatures
    with pytest.raises(EvidenceError, match="signature of P-384 does not fit the content"):
        EMPTY.signer(copied, PUBLIC)
    unnamed = copied.model_copy(update={"keyid": "of another tool"})
    assert EMPTY.signer(unnamed, PUBLIC) == ""
    html = Envelope(payload_type="text/html", payload=b"content")
    (kind,) = html.signed_by(KEYS["Ed25519"]).signatures
    with pytest.raises(EvidenceError, match="signature of Ed25519 does not fit"):
        EMPTY.signer(kind, PUBLIC)


@given(st.binary(max_size=50), st.text(max_size=10))
def test_what_is_written_is_read_back(payload, kind):
    if any("\ud800" <= letter <= "\udfff" for letter in kind):
        kind = "text/plain"
    envelope = Envelope(payload_type=kind, payload=payload).signed_by(KEYS["Ed25519"])
    assert read_envelope(envelope.to_bytes(), "file") == envelope


ONE = {"payloadType": "text/plain", "payload": "", "signatures": [{"keyid": "a", "sig": ""}]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        json.dumps(ONE | {"payload": "a"}).encode(),
        json.dumps(ONE | {"payloadType": "\ud800"}).encode(),
        json.dumps(ONE | {"signatures": [{"keyid": 1, "sig": ""}]}).encode(),
        json.dumps(ONE | {"signatures": [{"keyid": "a"}]}).encode(),
        json.dumps(ONE | {"signatures": ONE["signatures"] * (MOST_SIGNATURES + 1)}).encode(),
    ],
)
def test_what_is_no_envelope_is_said_in_one_line(content):
    with pytest.raises(EvidenceError, match=r"^file is no signed envelope") as caught:
        read_envelope(content, "file")
    assert len(str(caught.value).splitlines()) == 1


def test_two_signatures_of_one_key_are_refused():
    once = EMPTY.signed_by(KEYS["P-384"])
    with pytest.raises(EvidenceError, match=f"key {key_id(PUBLIC['P-384'])[:16]}... already"):
        once.signed_by(KEYS["P-384"])
    with pytest.raises(EvidenceError, match=r"signature with key a\.\.\. already"):
        read_envelope(json.dumps(ONE | {"signatures": ONE["signatures"] * 2}).encode(), "file")
