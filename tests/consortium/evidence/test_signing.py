from __future__ import annotations

import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedif_consortium.evidence.keys import load_key, load_or_make_key, public_der
from fedif_flower.errors import ConfigError


def test_a_key_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "folder" / "key.pem"
    with pytest.raises(ConfigError, match=r"key\.pem' cannot be read"):
        load_key(path)
    key = load_or_make_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert public_der(load_or_make_key(path).public_key()) == public_der(key.public_key())
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read it"):
        load_or_make_key(path)


def test_an_operator_signs_with_ed25519_alone(tmp_path):
    other = generate_private_key(SECP256R1())
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content, said in ((b"nothing", "no private key"), (pem, "no Ed25519 key")):
        path = tmp_path / "key.pem"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=said):
            load_or_make_key(path)
    assert public_der(load_key(path).public_key()) == public_der(other.public_key())
