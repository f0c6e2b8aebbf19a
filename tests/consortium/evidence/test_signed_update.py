from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedif_consortium.evidence.signed import SignedUpdate, arrays_digest
from fedif_flower.errors import EvidenceError

SAID = {"run": "ab" * 16, "asked_in": 3, "node_id": 1001, "examples": 40.0}
SAID |= {"received": b"r" * 32, "sent": b"s" * 32}
KEYS = {
    "ed25519": Ed25519PrivateKey.generate(),
    "p256": ec.generate_private_key(ec.SECP256R1()),
    "p384": ec.generate_private_key(ec.SECP384R1()),
    "p521": ec.generate_private_key(ec.SECP521R1()),
}


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
    others = [
        [("v", values)],
        [("w", values.astype(np.float64))],
        [("w", values.reshape(3, 2))],
        [("w", changed)],
    ]
    assert len({known, *map(arrays_digest, others)}) == 5


@pytest.mark.parametrize("kind", KEYS)
def test_what_was_signed_is_told_from_anything_else(kind):
    signed = SignedUpdate.by(KEYS[kind], **SAID)
    signed.check()
    changes = {
        "run": "cd" * 16,
        "asked_in": 4,
        "node_id": 1002,
        "examples": 41.0,
        "received": b"s" * 32,
        "sent": b"r" * 32,
        "head": b"h" * 32,
        "key": SignedUpdate.by(Ed25519PrivateKey.generate(), **SAID).key,
        "signature": b"",
    }
    for name, value in changes.items():
        with pytest.raises(EvidenceError, match="signature"):
            signed.model_copy(update={name: value}).check()


def test_a_key_that_is_none_is_named():
    of_rsa = rsa.generate_private_key(65537, 2048).public_key()
    der = of_rsa.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    signed = SignedUpdate.by(KEYS["p256"], **SAID)
    for key, reason in ((der, "another kind"), (b"", "no public key")):
        with pytest.raises(EvidenceError, match=reason):
            signed.model_copy(update={"key": key}).check()
