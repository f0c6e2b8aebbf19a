from __future__ import annotations

import os
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedif_consortium.evidence.keys import is_signed, public_der
from fedif_consortium.statement.signing import load_key, load_or_make_key
from fedif_flower.errors import ConfigError


def test_a_key_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "folder" / "key.pem"
    key = load_or_make_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    again = load_or_make_key(path)
    assert path.read_bytes() == content
    assert public_der(again.public_key()) == public_der(key.public_key())
    assert is_signed(key.public_key(), again.sign(b"text"), b"text")
    assert not is_signed(key.public_key(), again.sign(b"text"), b"test")


def test_a_member_s_key_is_read_and_none_is_made(tmp_path):
    path = tmp_path / "key.pem"
    with pytest.raises(ConfigError, match=r"key\.pem' cannot be read: No such file"):
        load_key(path)
    assert not path.exists()
    own = generate_private_key(SECP256R1())
    path.write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    assert public_der(load_key(path).public_key()) == public_der(own.public_key())


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
    for content, said in ((b"nothing", "no private key"), (pem, "no Ed25519 key")):
        path = tmp_path / "key.pem"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=said):
            load_or_make_key(path)
