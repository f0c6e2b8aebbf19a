"""What a member signs of its update, and how the server looks at it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedif_consortium.evidence.attempts import AgreedRun
from fedif_consortium.evidence.keys import public_der
from fedif_consortium.evidence.reply_witness import ReplyWitness
from fedif_consortium.evidence.signed import (
    SIGNATURE_RECORD,
    SignedUpdate,
    arrays_digest,
    sign_reply,
)
from fedif_flower.errors import EvidenceError, ReplyError
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.folder import RunFolder

RUN = "ab" * 16
CURVES = (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1())
KEYS = [Ed25519PrivateKey.generate(), *map(ec.generate_private_key, CURVES)]
KEY, OTHER = KEYS[:2]
RSA = rsa.generate_private_key(65537, 2048).public_key()
NODE = ClientNode(0, 1000, name="ada")


def test_a_digest_by_hand():
    arrays = {"b": np.array([1.0], "<f4"), "a": np.array([[True, False]])}
    content = b'["a", "|b1", [1, 2]]\n\x01\x00["b", "<f4", [1]]\n\x00\x00\x80?'
    assert arrays_digest(arrays.items()) == hashlib.sha256(content).digest()


def test_a_digest_tells_names_types_shapes_and_values_and_nothing_else():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    known = arrays_digest([("w", values)])
    for same in (np.asfortranarray(values), values.astype(">f4"), values[:, ::-1][:, ::-1]):
        assert arrays_digest([("w", same)]) == known
    changed = values.copy()
    changed[0, 0] = -0.0  # Another bit, the same number.
    others = [("v", values), *(("w", v) for v in (values.astype(float), values.T, changed))]
    assert len({known, *(arrays_digest([other]) for other in others)}) == 5


@pytest.mark.parametrize("key", KEYS)
def test_what_was_signed_is_told_from_anything_else(key):
    said = {"run": RUN, "asked_in": 3, "node_id": 1001, "examples": 40.0}
    said |= {"received": b"r" * 32, "sent": b"s" * 32, "head": b""}
    signed = SignedUpdate.by(key, **said)
    signed.check()
    other = {"run": "cd" * 16, "asked_in": 4, "node_id": 1002, "examples": 41.0}
    other |= {"received": b"s" * 32, "sent": b"r" * 32, "head": b"h" * 32, "signature": b""}
    other["key"] = SignedUpdate.by(Ed25519PrivateKey.generate(), **said).key
    assert {*said, "key", "signature"} == other.keys()
    for name, value in other.items():
        with pytest.raises(EvidenceError, match="signature"):
            signed.model_copy(update={name: value}).check()


def arrays(value: float) -> ArrayRecord:
    return ArrayRecord({"w": pack_array(np.full(3, value, np.float32))})


def reply(key=KEY, *, received: float = 1.0, server_round: int = 1, **about) -> RecordDict:
    content = RecordDict({"arrays": arrays(2.0), "metrics": MetricRecord({"num-examples": 10})})
    about = {"run": RUN, "node_id": 1000, **about}
    sign_reply(content, arrays(received), key, asked_in=server_round, **about)
    return content


def changed(name: str, value: object) -> RecordDict:
    """Return a reply in which one thing is another than what was signed."""
    content = reply()
    if name == "arrays":
        content["arrays"] = value
    else:
        record = content.config_records[SIGNATURE_RECORD]
        content[SIGNATURE_RECORD] = ConfigRecord({**record, name: value})
    return content


def witness(server_round: int = 1, **how) -> ReplyWitness:
    made = ReplyWitness(RunFolder("nowhere"), RUN, **how)
    made.begin(server_round, arrays(1.0))
    return made


def look(of: ReplyWitness, content: RecordDict, asked: int = 1) -> None:
    of.look(content, content.array_records["arrays"], NODE, asked)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (changed("arrays", arrays(9.0)), "another update than it sent"),
        (reply(received=7.0), "another model than it was sent"),
        (reply(node_id=1001), "does not fit"),
        (reply(head=b"h" * 32), "was told other records than these"),
        (changed("head", b"told"), "does not fit"),
        (changed("key", 5), "its signature: key = 5"),
        (changed("key", b"no key"), "signed with no public key"),
        (
            changed("key", RSA.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)),
            "signed with a key of another kind",
        ),
    ],
)
def test_a_false_signature_is_refused_by_what_is_false(content, reason):
    found = witness(heads=[b"told"])
    with pytest.raises(ReplyError, match=reason):
        look(found, content)
    assert found.seen[1000].signed is None


@pytest.mark.parametrize("known", ["signed", "resumed", "registered"])
def test_a_member_has_one_key_in_a_run(known):
    found = witness()
    look(found, reply())
    if known == "registered":
        found = witness(registered=lambda: {1000: public_der(KEY.public_key())})
    if known == "resumed":
        before, found = found.seen[1000].signed.cells(), witness()
        found.restore([{"round": 1, "client_id": 1000, **before}], None, 1)
    found.begin(2, arrays(1.0))
    with pytest.raises(ReplyError, match="another key than that of this node"):
        look(found, reply(OTHER, server_round=2), asked=2)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_member_that_got_another_key_goes_on_in_the_run(is_resumed):
    """`fedif federation rekey` while the run goes on, or stands still: the node is the same."""
    keys = {1000: public_der(KEY.public_key())}
    found = witness(registered=lambda: dict(keys))
    look(found, reply())
    if is_resumed:
        before, found = found.seen[1000].signed.cells(), witness(registered=lambda: dict(keys))
        found.restore([{"round": 1, "client_id": 1000, **before}], None, 1)
    found.begin(2, arrays(1.0))
    with pytest.raises(ReplyError, match="another key than that of this node"):
        look(found, reply(OTHER, server_round=2), asked=2)
    keys[1000] = public_der(OTHER.public_key())
    look(found, reply(OTHER, server_round=2), asked=2)
    assert found.seen[1000].signed.key == keys[1000]


def test_a_reply_without_a_signature_is_refused_where_that_is_required():
    content = reply()
    del content[SIGNATURE_RECORD]
    plain, taking = witness(), witness(digests=True)
    look(plain, content)
    look(taking, content)
    assert (plain.seen, taking.seen[1000].signed) == ({}, None)
    with pytest.raises(ReplyError, match=r"evidence\.require-signatures"):
        look(witness(required=True), content)


def test_a_late_reply_signs_the_round_that_it_was_asked_in():
    found = witness(late_rounds=1)
    found.begin(2, arrays(5.0))
    look(found, reply(), asked=1)
    assert found.seen[1000].signed is not None


def test_a_reply_is_of_the_attempt_that_the_server_told_of():
    """A signature of another attempt, which a member made before, does not fit."""
    agreed = AgreedRun(name="october", attempt=2, config=b"c" * 32, earlier=b"e" * 32)
    found = witness(agreed=agreed)
    look(found, reply(**agreed.terms()))
    assert found.seen[1000].signed.attempt == 2
    for changes in ({"attempt": 1}, {"name": "november"}, {"config": b"d" * 32}, {"earlier": b""}):
        with pytest.raises(ReplyError, match="the signature does not fit"):
            look(found, reply(**{**agreed.terms(), **changes}))


def test_signatures_that_name_no_attempt_are_not_gone_on_from():
    lines = [{"round": 1, "client_id": 1000, "node_id": 1000, "key": "00"}]
    with pytest.raises(ValueError, match="its signatures are of an earlier version, and name no"):
        witness().restore(lines, None, 1)
