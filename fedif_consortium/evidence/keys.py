"""Keys of members and of the operator: reading, making, naming, signing and checking.

A member signs with an ECDSA key on the curve P-256, P-384 or P-521, as SuperNodes use them
(``ssh-keygen -t ecdsa``), or with an Ed25519 key. The key's file has the format of OpenSSH or PEM.
The operator signs with an Ed25519 key.

References
----------
RFC 7748, section 4.1 (the field of Ed25519); RFC 8032, section 5.1.3 (points as bytes).
Chalkias et al., *Taming the many EdDSAs*, 2020, table 1 (the points of small order).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedif_consortium.evidence.names import holder_of, require_apart
from fedif_flower.errors import ConfigError
from fedif_flower.foreign import read_whole
from fedif_flower.storage import config_folder, make_private, require_private

SigningKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey
VerifyingKey = ec.EllipticCurvePublicKey | Ed25519PublicKey

STATEMENT_KEY = "statement-key.pem"
_SUFFIX = ".pub"
_MOST_BYTES = 2**20  # The largest file that is read as a public key.
_KINDS = (
    "an Ed25519 key, not of small order, or one of P-256, P-384 or P-521, unencrypted, as OpenSSH "
    "or PEM"
)
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_FIELD = 2**255 - 19  # The prime p of the field of Ed25519.
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
# The y coordinates of all points of Ed25519 of order 1, 2, 4 or 8; the sign of x does not matter.
_SMALL_ORDER = frozenset({0, 1, _FIELD - 1, _ORDER_8, _FIELD - _ORDER_8})


def read_private_key(data: bytes, name: str) -> SigningKey:
    """Return the private key in some bytes; error messages call the key ``name``.

    Raises
    ------
    ConfigError
        If the bytes hold no unencrypted private key of an allowed kind.
    """
    load = load_ssh_private_key if b"OPENSSH" in data else load_pem_private_key
    try:
        key = load(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm, NotImplementedError):
        key = None
    if not isinstance(key, SigningKey) or not is_allowed(key.public_key()):
        raise ConfigError(f"{name} is no private key; allowed: {_KINDS}")
    return key


def read_key_file(path: Path, name: str) -> SigningKey:
    """Return the private key in a file; error messages call the key ``name``.

    Raises
    ------
    ConfigError
        If the file cannot be read, or holds no unencrypted private key of an allowed kind.
    """
    name = f"{name} = {str(path)!r}"
    try:
        return read_private_key(path.expanduser().read_bytes(), name)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error


def load_key(path: Path) -> SigningKey:
    """Return the private key in a file that only its owner may read.

    Raises
    ------
    ConfigError
        If the file is missing, holds no unencrypted private key of an allowed kind, or may be
        read by other users.
    """
    path = path.expanduser()
    key = read_key_file(path, "key")
    require_private(path, "key")
    return key


def default_key_path() -> Path:
    """Return the path of the key that identifies the operator.

    It is the first of these that applies: ``$FEDIF_STATEMENT_KEY``; ``statement-key.pem`` in the
    federation's folder, if ``$FEDIF_FEDERATION`` names one; ``statement-key.pem`` in
    ``<$XDG_CONFIG_HOME or ~/.config>/fedif-flower``. The key does not lie beside the results,
    because results are handed to others.

    Raises
    ------
    ConfigError
        If the federation's folder has no such key. Another key would not do: members know the
        fingerprint of this one from their invitations.
    """
    named = os.environ.get("FEDIF_STATEMENT_KEY")
    if named:
        return Path(named)
    federation = os.environ.get("FEDIF_FEDERATION")
    if not federation:
        return config_folder() / STATEMENT_KEY
    key = Path(federation).expanduser() / STATEMENT_KEY
    if not key.is_file():
        raise ConfigError(
            f"FEDIF_FEDERATION = {federation!r} has no {STATEMENT_KEY}, by which members know "
            "the operator: restore it, or unset FEDIF_FEDERATION"
        )
    return key


def load_or_make_key(path: Path) -> Ed25519PrivateKey:
    """Return the operator's key in a file; make the file, with mode 0600, if it is missing.

    Raises
    ------
    ConfigError
        If the file holds no unencrypted Ed25519 key, or other users may read it.
    StorageError
        If the file cannot be written.
    """
    path = path.expanduser()
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        make_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    loaded = load_key(path)
    if not isinstance(loaded, Ed25519PrivateKey):
        raise ConfigError(f"key = {str(path)!r} is no Ed25519 key")
    return loaded


def read_public_key(data: bytes, name: str) -> VerifyingKey:
    """Return the public key in some bytes; error messages call the key ``name``.

    Raises
    ------
    ConfigError
        If the bytes hold no public key of an allowed kind.
    """
    load = load_pem_public_key if b"-----BEGIN" in data else load_ssh_public_key
    try:
        key = load(data)
    except (ValueError, UnsupportedAlgorithm, NotImplementedError):
        # NotImplementedError: the point of an SSH key is compressed.
        key = None
    if not is_allowed(key):
        raise ConfigError(f"{name} is no public key; allowed: {_KINDS}")
    return key


def is_allowed(key: object) -> TypeGuard[VerifyingKey]:
    """Return whether a public key is of an allowed kind, so that its signatures prove who signed.

    Allowed are ECDSA keys on P-256, P-384 or P-521, and Ed25519 keys that are not of small order.
    A key of small order identifies nobody: one signature by it fits every content, or every
    eighth.
    """
    if isinstance(key, Ed25519PublicKey):
        # The top bit is the sign of x. Bytes may hold a y of at least p, so y is reduced.
        y_and_sign = int.from_bytes(key.public_bytes_raw(), "little")
        return y_and_sign % 2**255 % _FIELD not in _SMALL_ORDER
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES)


def public_of(key: SigningKey) -> VerifyingKey:
    """Return the public half of a private key."""
    return key.public_key()


def key_digest(key: VerifyingKey) -> bytes:
    """Return the SHA-256 of a public key's DER, which identifies the key."""
    return hashlib.sha256(public_der(key)).digest()


def key_id(key: VerifyingKey) -> str:
    """Return the :func:`key_digest` in hex, as envelopes name a key."""
    return key_digest(key).hex()


def fingerprint(key: VerifyingKey) -> str:
    """Return the first half of :func:`key_id`, in groups of four digits, for people to compare."""
    return content_fingerprint(public_der(key))


def content_fingerprint(content: bytes) -> str:
    """Return the first half of the SHA-256 of some content, in groups of four hex digits."""
    digits = hashlib.sha256(content).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))


def public_der(key: VerifyingKey) -> bytes:
    """Return a public key as DER (SubjectPublicKeyInfo), the form that other tools read."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def sign(key: SigningKey, content: bytes) -> bytes:
    """Return a private key's signature of some content."""
    if isinstance(key, Ed25519PrivateKey):
        return key.sign(content)
    return key.sign(content, _hash_for(key.curve))


def is_signed(key: VerifyingKey, signature: bytes, content: bytes) -> bool:
    """Return whether ``signature`` is a signature of ``content`` by the private half of ``key``."""
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, content)
        else:
            key.verify(signature, content, _hash_for(key.curve))
    except InvalidSignature:
        return False
    return True


def _hash_for(curve: ec.EllipticCurve) -> ec.ECDSA:
    """Return ECDSA with a hash function as strong as the curve."""
    if curve.key_size <= 256:
        return ec.ECDSA(hashes.SHA256())
    if curve.key_size <= 384:
        return ec.ECDSA(hashes.SHA384())
    return ec.ECDSA(hashes.SHA512())


def read_members(folder: Path) -> dict[str, VerifyingKey]:
    """Return members' public keys by the names of their files, without ``.pub``.

    A file is named after the key's holder. A key that its holder used earlier has a number behind
    the name, see :func:`~fedif_consortium.evidence.names.key_name`.

    Parameters
    ----------
    folder : Path
        A folder with files such as ``hospital-a.pub``, in the format of OpenSSH or PEM, or one
        such file. Other files in the folder are ignored.

    Raises
    ------
    ConfigError
        If there is no such folder or file, a file holds no public key of an allowed kind, two
        files hold the same key, or the names of two holders read alike.
    """
    members = {}
    files = [folder]
    if folder.is_dir():
        files = sorted(folder.glob(f"*{_SUFFIX}"))
    for path in files:
        try:
            data = read_whole(path, _MOST_BYTES)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        members[path.name.removesuffix(_SUFFIX)] = read_public_key(data, str(path))
    if not members:
        raise ConfigError(f"members = {str(folder)!r} holds no public key, NAME{_SUFFIX}")
    require_apart(map(holder_of, members), f"members = {str(folder)!r}:")
    names_by_digest(members, str(folder))
    return members


def names_by_digest(members: Mapping[str, VerifyingKey], where: str) -> dict[bytes, str]:
    """Return members' names by the :func:`key_digest` of their keys.

    Error messages begin with ``where``, the place that lists the members.

    Raises
    ------
    ConfigError
        If two members have the same key.
    """
    names: dict[bytes, str] = {}
    for name, key in members.items():
        other = names.setdefault(key_digest(key), name)
        if other != name:
            raise ConfigError(f"{where} {name} and {other} have the same key")
    return names
