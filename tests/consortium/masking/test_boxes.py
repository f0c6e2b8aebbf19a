from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedif_consortium.evidence.keys import key_digest, public_of, read_private_key, read_public_key
from fedif_consortium.masking.boxes import (
    MOST_BYTES,
    BoxHeader,
    check_signature,
    open_box,
    read_header,
    seal,
    vector_digest,
)
from fedif_flower.errors import BoxError, ConfigError

SEED = bytes(range(32))
KEEPER = X25519PrivateKey.generate()
KEYS = {
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "P-384, as SuperNodes have it": ec.generate_private_key(ec.SECP384R1()),
    "P-521": ec.generate_private_key(ec.SECP521R1()),
    "Ed25519": Ed25519PrivateKey.generate(),
}


def box_of(key, **other) -> tuple[BoxHeader, bytes]:
    values = {"run": 2**64 - 1, "server_round": 3, "node": 2**63, "length": 10, "digest": SEED}
    values["instructions"] = bytes(32)
    header = BoxHeader(**{**values, "signer": key_digest(public_of(key)), **other})
    return header, seal(header, SEED, KEEPER.public_key(), key)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_the_keeper_alone_opens_a_box_and_anyone_reads_its_header(key):
    header, box = box_of(key)
    assert len(box) <= MOST_BYTES
    assert SEED not in box[len(header.to_bytes()) :]
    assert read_header(box) == header
    check_signature(box, public_of(key))
    assert open_box(box, KEEPER) == SEED
    with pytest.raises(BoxError, match="not sealed for this keeper"):
        open_box(box, X25519PrivateKey.generate())


def test_every_changed_bit_is_noticed():
    key = KEYS["Ed25519"]
    _, box = box_of(key)
    for place in range(len(box)):
        changed = bytearray(box)
        changed[place] ^= 1
        with pytest.raises(BoxError):
            check_signature(bytes(changed), public_of(key))


def test_a_seed_cannot_be_put_under_another_header():
    key = KEYS["Ed25519"]
    header, box = box_of(key)
    other, _ = box_of(key, server_round=4)
    moved = other.to_bytes() + box[len(header.to_bytes()) :]
    with pytest.raises(BoxError, match="not sealed for this keeper"):
        open_box(moved, KEEPER)


def test_another_members_signature_is_none():
    _, box = box_of(KEYS["Ed25519"])
    with pytest.raises(BoxError, match="not signed by the member"):
        check_signature(box, public_of(KEYS["P-384, as SuperNodes have it"]))
    # Signed by one, in the name of the other.
    _, box = box_of(KEYS["P-256"], signer=key_digest(public_of(KEYS["Ed25519"])))
    with pytest.raises(BoxError, match="not signed by the member"):
        check_signature(box, public_of(KEYS["Ed25519"]))


def test_a_point_of_low_order_is_refused():
    _, box = box_of(KEYS["Ed25519"])
    header = read_header(box).to_bytes()
    with pytest.raises(BoxError, match="not sealed for this keeper"):
        open_box(header + bytes(32) + box[len(header) + 32 :], KEEPER)


def test_the_digest_is_that_of_little_endian_bytes():
    assert vector_digest(np.array([1, 2**63], np.uint64)) == (
        hashlib.sha256(b"\x01" + bytes(7) + bytes(7) + b"\x80").digest()
    )


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_keys_as_files_have_them(key):
    public = public_of(key)
    for form in (PrivateFormat.OpenSSH, PrivateFormat.PKCS8):
        data = key.private_bytes(Encoding.PEM, form, NoEncryption())
        assert key_digest(public_of(read_private_key(data, "key"))) == key_digest(public)
    for encoding, kind in (
        (Encoding.OpenSSH, PublicFormat.OpenSSH),
        (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    ):
        data = public.public_bytes(encoding, kind)
        assert key_digest(read_public_key(data, "key")) == key_digest(public)


def test_keys_of_other_kinds_are_refused_by_name():
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for data, words in ((private, "of another kind"), (b"nothing", "no private key")):
        with pytest.raises(ConfigError, match=rf"node\.pem is .*{words}; allowed: an Ed25519"):
            read_private_key(data, "node.pem")
    for data, words in ((public, "of another kind"), (b"nothing", "no public key")):
        with pytest.raises(ConfigError, match=rf"node\.pub is .*{words}; allowed: an Ed25519"):
            read_public_key(data, "node.pub")
