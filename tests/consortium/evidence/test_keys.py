from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedif_consortium.evidence.keys import (
    is_allowed,
    is_signed,
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
from fedif_consortium.evidence.signed import TERMS, Signed
from fedif_flower.errors import ConfigError, EvidenceError

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


def test_a_key_with_a_changed_byte_is_refused_by_name():
    """A point that begins so is packed, which the reader of OpenSSH's keys does not unpack."""
    own = ec.generate_private_key(ec.SECP256R1())
    whole = bytes([0, 0, 0, 65, 4])
    changed = bytes([0, 0, 0, 65, 2])
    kind, public = own.public_key().public_bytes(*SSH).split()
    spoilt = base64.b64encode(base64.b64decode(public).replace(whole, changed))
    with pytest.raises(ConfigError, match=r"node\.pub is no public key"):
        read_public_key(kind + b" " + spoilt, "node.pub")
    private = own.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    begin, *lines, end = private.splitlines()
    spoilt = base64.b64encode(base64.b64decode(b"".join(lines)).replace(whole, changed))
    with pytest.raises(ConfigError, match=r"node\.key is no private key"):
        read_private_key(b"\n".join([begin, spoilt, end]) + b"\n", "node.key")


class _Said(Signed):
    kind = "test"
    signs = TERMS


# The points of Ed25519 of order 1, 2, 4 and 8, as RFC 8032 writes them; then in other ways: with a
# sign of x = 0, with y + p. From table 1 of "Taming the many EdDSAs" and libsodium's blocklist.
ORDER_8 = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc"
MINUS_ORDER_8 = "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03"
SMALL_ORDER = [
    "01" + "00" * 31,
    "ec" + "ff" * 30 + "7f",
    "00" * 32,
    "00" * 31 + "80",
    ORDER_8 + "05",
    ORDER_8 + "85",
    MINUS_ORDER_8 + "7a",
    MINUS_ORDER_8 + "fa",
]
OTHERWISE = [
    "01" + "00" * 30 + "80",
    "ec" + "ff" * 31,
    "ed" + "ff" * 30 + "7f",
    "ed" + "ff" * 31,
    "ee" + "ff" * 30 + "7f",
    "ee" + "ff" * 31,
]
FITS_EVERYTHING = bytes.fromhex(SMALL_ORDER[0]) + bytes(32)


@pytest.mark.parametrize("encoding", SMALL_ORDER + OTHERWISE)
def test_a_key_that_is_nobody_s_is_refused(encoding):
    """One signature fits every content, or every eighth: its holder could deny everything."""
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(encoding))
    if encoding in SMALL_ORDER:
        contents = map(str.encode, map(str, range(200)))
        assert any(is_signed(key, FITS_EVERYTHING, content) for content in contents)
    assert not is_allowed(key)
    for form in (PEM, SSH):
        with pytest.raises(ConfigError, match=r"a\.pub is no public key; .* not of small order"):
            read_public_key(key.public_bytes(*form), "a.pub")
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(EvidenceError, match="signed with a key of another kind"):
        _Said(run="ab" * 16, key=der, signature=FITS_EVERYTHING).check()


@pytest.mark.parametrize("curve", [ec.SECP192R1, ec.SECP224R1, ec.SECP256K1, ec.BrainpoolP384R1])
def test_a_key_of_a_curve_that_the_format_does_not_list_is_refused(curve):
    own = ec.generate_private_key(curve())
    with pytest.raises(ConfigError, match=r"or one of P-256, P-384 or P-521"):
        read_public_key(own.public_key().public_bytes(*PEM), "a.pub")
    private = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(ConfigError, match=r"a is no private key; .* P-521"):
        read_private_key(private, "a")
    with pytest.raises(EvidenceError, match="signed with a key of another kind"):
        _Said.by(own, run="ab" * 16).check()


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


def test_what_is_no_file_among_members_keys_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "ada.pub")
    with pytest.raises(ConfigError, match=r"ada\.pub cannot be read: it is no regular file"):
        read_members(tmp_path)
