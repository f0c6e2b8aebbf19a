from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.evidence import dsse as module
from fedif_consortium.evidence.dsse import MOST_SIGNATURES, Envelope, read_envelope
from fedif_consortium.evidence.keys import key_id
from fedif_flower.errors import EvidenceError

KEY = ec.generate_private_key(ec.SECP384R1())
EMPTY = Envelope(payload_type="text/plain", payload=b"content")


def test_what_is_signed_is_the_standard_s_example():
    # From protocol.md of DSSE.
    envelope = Envelope(payload_type="http://example.com/HelloWorld", payload=b"hello world")
    assert envelope.signed_bytes() == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_a_signature_of_other_content_is_nobody_s_or_false():
    keys = {"ada": KEY.public_key()}
    for changes in ({"payload": b"other content"}, {"payload_type": "text/html"}):
        (copied,) = EMPTY.model_copy(update=changes).signed_by(KEY).signatures
        with pytest.raises(EvidenceError, match="signature of ada does not fit the content"):
            EMPTY.signer(copied, keys)
        unnamed = copied.model_copy(update={"keyid": "of another tool"})
        assert EMPTY.signer(unnamed, keys) == ""


@given(st.binary(max_size=50), st.text(max_size=10))
def test_what_is_written_is_read_back(payload, kind):
    if any("\ud800" <= letter <= "\udfff" for letter in kind):
        kind = "text/plain"
    envelope = Envelope(payload_type=kind, payload=payload).signed_by(KEY)
    assert read_envelope(envelope.to_bytes(), "file") == envelope


ONE = {"payloadType": "text/plain", "payload": "", "signatures": [{"keyid": "a", "sig": ""}]}


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"{}",
        b"[" * 100_000,
        json.dumps(ONE | {"payload": "a"}).encode(),
        json.dumps(ONE | {"payloadType": "\ud800"}).encode(),
        json.dumps(ONE | {"signatures": [{"keyid": 1, "sig": ""}]}).encode(),
        json.dumps(ONE | {"signatures": ONE["signatures"] * (MOST_SIGNATURES + 1)}).encode(),
    ],
)
def test_what_is_no_envelope_is_said_in_one_line(content):
    with pytest.raises(EvidenceError, match=r"^file is no signed envelope") as caught:
        read_envelope(content, "file")
    assert len(str(caught.value).splitlines()) == 1


def test_two_signatures_of_one_key_are_refused():
    once = EMPTY.signed_by(KEY)
    with pytest.raises(EvidenceError, match=f"key {key_id(KEY.public_key())[:16]}... already"):
        once.signed_by(KEY)
    with pytest.raises(EvidenceError, match=r"signature with key a\.\.\. already"):
        read_envelope(json.dumps(ONE | {"signatures": ONE["signatures"] * 2}).encode(), "file")


def test_no_more_signatures_are_added_than_may_be_read(monkeypatch):
    monkeypatch.setattr(module, "MOST_SIGNATURES", 2)
    full = EMPTY.with_signature("", b"1").with_signature("", b"2")
    for add in (lambda: full.with_signature("", b"3"), lambda: full.signed_by(KEY)):
        with pytest.raises(EvidenceError, match="there are 2 signatures already: no more may be"):
            add()
    whole = EMPTY.model_copy(update={"signatures": full.signatures[:1] * MOST_SIGNATURES})
    monkeypatch.undo()
    assert read_envelope(whole.to_bytes(), "file") == whole
    with pytest.raises(EvidenceError, match="there are 1,000 signatures already"):
        whole.signed_by(KEY)
