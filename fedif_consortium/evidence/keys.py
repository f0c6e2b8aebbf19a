"""Keys of members and of the operator, and what they sign.

A member signs with a key of the curves P-256, P-384 or P-521, as SuperNodes have them
(``ssh-keygen -t ecdsa``), or with Ed25519; both as OpenSSH or PEM writes them. The operator signs
with Ed25519.

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
from fedif_flower.storage import config_folder, require_private, write_private

SigningKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey
VerifyingKey = ec.EllipticCurvePublicKey | Ed25519PublicKey

STATEMENT_KEY = "statement-key.pem"
_SUFFIX = ".pub"
_MOST_BYTES = 2**20  # Of a file with a public key.
_KINDS = (
    "an Ed25519 key, not of small order, or one of P-256, P-384 or P-521, unencrypted, as OpenSSH "
    "or PEM"
)
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_FIELD = 2**255 - 19
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
# The y of all points of Ed25519 whose order is 1, 2, 4 or 8, whatever the sign of their x.
_SMALL_ORDER = frozenset({0, 1, _FIELD - 1, _ORDER_8, _FIELD - _ORDER_8})


def read_private_key(data: bytes, name: str) -> SigningKey:
    """Return a member's private key; ``name`` is what an error calls it.

    Raises
    ------
    ConfigError
        If it is no private key, or of another kind.
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
    """Return the private key in a file; ``name`` is what an error calls it.

    Raises
    ------
    ConfigError
        If it cannot be read, or holds none.
    """
    name = f"{name} = {str(path)!r}"
    try:
        return read_private_key(path.expanduser().read_bytes(), name)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error


def load_key(path: Path) -> SigningKey:
    """Return the private key in a file that its owner alone may read.

    Raises
    ------
    ConfigError
        If it is not there, no unencrypted key that signs, or others may read it.
    """
    path = path.expanduser()
    key = read_key_file(path, "key")
    require_private(path, "key")
    return key


def default_key_path() -> Path:
    """Return where the key lies by which an operator is known.

    ``$FEDIF_STATEMENT_KEY``; else ``statement-key.pem`` of the federation in ``$FEDIF_FEDERATION``,
    whose fingerprint its invitations name; else ``statement-key.pem`` in
    ``<$XDG_CONFIG_HOME or ~/.config>/fedif-flower``. Not beside the results: those are handed
    around.

    Raises
    ------
    ConfigError
        If the federation's folder has no such key: members would not know another one.
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
    """Return the operator's key in a file, which is made with mode 0600 if it is not there.

    Raises
    ------
    ConfigError
        If it is no unencrypted Ed25519 key, or others may read it.
    StorageError
        If it cannot be made.
    """
    path = path.expanduser()
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return key
    loaded = load_key(path)
    if not isinstance(loaded, Ed25519PrivateKey):
        raise ConfigError(f"key = {str(path)!r} is no Ed25519 key")
    return loaded


def read_public_key(data: bytes, name: str) -> VerifyingKey:
    """Return a member's public key; ``name`` is what an error calls it.

    Raises
    ------
    ConfigError
        If it is no public key, or of another kind.
    """
    load = load_pem_public_key if b"-----BEGIN" in data else load_ssh_public_key
    try:
        key = load(data)
    except (ValueError, UnsupportedAlgorithm, NotImplementedError):  # Of a compressed point.
        key = None
    if not is_allowed(key):
        raise ConfigError(f"{name} is no public key; allowed: {_KINDS}")
    return key


def is_allowed(key: object) -> TypeGuard[VerifyingKey]:
    """Return whether a public key may say who signed something: it is of a kind listed above.

    An Ed25519 key of small order is nobody's: one signature by it fits every content, or every
    eighth.
    """
    if isinstance(key, Ed25519PublicKey):
        y_and_sign = int.from_bytes(key.public_bytes_raw(), "little")
        return y_and_sign % 2**255 % _FIELD not in _SMALL_ORDER
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES)


def public_of(key: SigningKey) -> VerifyingKey:
    """Return the public half."""
    return key.public_key()


def key_digest(key: VerifyingKey) -> bytes:
    """Return the SHA-256 by which a public key is named."""
    return hashlib.sha256(public_der(key)).digest()


def key_id(key: VerifyingKey) -> str:
    """Return the :func:`key_digest` in hex: the id of a key in envelopes."""
    return key_digest(key).hex()


def fingerprint(key: VerifyingKey) -> str:
    """Return what people compare: the first half of :func:`key_id`, in groups of four."""
    return content_fingerprint(public_der(key))


def content_fingerprint(content: bytes) -> str:
    """Return the first half of the SHA-256 of some content, in groups of four."""
    digits = hashlib.sha256(content).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))


def public_der(key: VerifyingKey) -> bytes:
    """Return a public key as others read it: DER, SubjectPublicKeyInfo."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def sign(key: SigningKey, content: bytes) -> bytes:
    """Return the signature of some content."""
    if isinstance(key, Ed25519PrivateKey):
        return key.sign(content)
    return key.sign(content, _hash_for(key.curve))


def is_signed(key: VerifyingKey, signature: bytes, content: bytes) -> bool:
    """Return whether a signature is that of ``content`` by the holder of the private half."""
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, content)
        else:
            key.verify(signature, content, _hash_for(key.curve))
    except InvalidSignature:
        return False
    return True


def _hash_for(curve: ec.EllipticCurve) -> ec.ECDSA:
    """Return the signature algorithm with a hash of a curve's strength."""
    if curve.key_size <= 256:
        return ec.ECDSA(hashes.SHA256())
    if curve.key_size <= 384:
        return ec.ECDSA(hashes.SHA384())
    return ec.ECDSA(hashes.SHA512())


def read_members(folder: Path) -> dict[str, VerifyingKey]:
    """Return the public keys in a folder, each by its file's name without `.pub`.

    That is its holder's name, or, of a key that it had before, see
    :func:`~fedif_consortium.evidence.names.key_name`.

    Parameters
    ----------
    folder : Path
        With files such as ``hospital-a.pub``, as OpenSSH or PEM writes them, other files being
        ignored; or one such file.

    Raises
    ------
    ConfigError
        If there is no such folder or file, or naming the file that is no public key, or two with
        the same one, or whose names read alike.
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
    """Return the members' names by :func:`~key_digest`.

    ``where`` is what an error calls the place that lists them.

    Raises
    ------
    ConfigError
        If two have the same key.
    """
    names: dict[bytes, str] = {}
    for name, key in members.items():
        other = names.setdefault(key_digest(key), name)
        if other != name:
            raise ConfigError(f"{where} {name} and {other} have the same key")
    return names
