from __future__ import annotations

import os
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedif_flower.errors import ConfigError
from fedif_flower.statement.signing import (
    default_key_path,
    fingerprint,
    is_signed,
    load_or_make_key,
    public_bytes,
)


def test_a_key_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "folder" / "key.pem"
    key = load_or_make_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    again = load_or_make_key(path)
    assert path.read_bytes() == content
    assert public_bytes(again) == public_bytes(key)
    assert is_signed(public_bytes(key), again.sign(b"text"), b"text")
    assert not is_signed(public_bytes(key), again.sign(b"text"), b"test")
    assert not is_signed(b"short", again.sign(b"text"), b"text")


def test_a_fingerprint_is_of_the_public_key():
    # sha256 of 32 zero bytes begins with 66687aadf862bd776c8fc18b8e9f8e20.
    assert fingerprint(bytes(32)) == "6668 7aad f862 bd77 6c8f c18b 8e9f 8e20"


def test_the_default_key_does_not_lie_with_results(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_key_path() == tmp_path / "fedif-flower" / "statement-key.pem"


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_key_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "key.pem"
    load_or_make_key(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read it"):
        load_or_make_key(path)


def test_what_is_no_such_key_is_refused(tmp_path):
    other = generate_private_key(SECP256R1())
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content, said in ((b"nothing", "no unencrypted PEM key"), (pem, "no Ed25519 key")):
        path = tmp_path / "key.pem"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=said):
            load_or_make_key(path)
