from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedif_consortium.evidence.keys import (
    key_digest,
    load_key,
    load_or_make_key,
    names_by_digest,
    public_der,
    public_of,
    read_members,
    read_private_key,
    read_public_key,
)
from fedif_flower.errors import ConfigError

KEYS = {
    "hospital-a": public_of(Ed25519PrivateKey.generate()),
    "hospital-b": public_of(ec.generate_private_key(ec.SECP384R1())),
}
SSH = (Encoding.OpenSSH, PublicFormat.OpenSSH)
PEM = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_members_are_called_after_their_files_and_have_a_key_each(tmp_path):
    with pytest.raises(ConfigError, match="nowhere cannot be read"):
        read_members(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"holds no public key, NAME\.pub"):
        read_members(tmp_path)
    (tmp_path / "README").write_text("no key")
    (tmp_path / "hospital-a.pub").write_bytes(KEYS["hospital-a"].public_bytes(*SSH))
    (tmp_path / "hospital-b.pub").write_bytes(KEYS["hospital-b"].public_bytes(*PEM))
    found = names_by_digest(read_members(tmp_path), "members")
    assert found == {key_digest(key): name for name, key in KEYS.items()}
    (tmp_path / "hospital-z.pub").write_bytes(KEYS["hospital-a"].public_bytes(*PEM))
    with pytest.raises(ConfigError, match="hospital-z and hospital-a have the same key"):
        read_members(tmp_path)


@pytest.mark.parametrize("form", [PrivateFormat.OpenSSH, PrivateFormat.PKCS8])
def test_private_keys_of_two_kinds_are_read_and_others_are_refused_by_name(form):
    for own in (ec.generate_private_key(ec.SECP521R1()), Ed25519PrivateKey.generate()):
        data = own.private_bytes(Encoding.PEM, form, NoEncryption())
        assert public_of(read_private_key(data, "key")) == own.public_key()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with pytest.raises(ConfigError, match=r"node\.pem is no private key; allowed: an Ed25519"):
        read_private_key(key.private_bytes(Encoding.PEM, form, NoEncryption()), "node.pem")
    with pytest.raises(ConfigError, match=r"node\.pub is no public key; allowed: an Ed25519"):
        read_public_key(key.public_key().public_bytes(*PEM), "node.pub")


def test_an_operator_s_key_is_made_once_for_its_owner_alone(tmp_path):
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
    other, path = ec.generate_private_key(ec.SECP256R1()), tmp_path / "key.pem"
    path.touch(0o600)
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content, said in ((b"nothing", "no private key"), (pem, "no Ed25519 key")):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            load_or_make_key(path)
    assert public_der(load_key(path).public_key()) == public_der(other.public_key())


def test_a_key_in_the_home_folder_is_found(tmp_path, monkeypatch):
    """A shell leaves ~ as it is in --key=~/node.key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    made = load_or_make_key(Path("~/node.key"))
    assert (tmp_path / "node.key").is_file()
    assert load_key(Path("~/node.key")).public_key() == made.public_key()
