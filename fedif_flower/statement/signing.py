"""The key that signs statements: Ed25519, made on first use, readable by its owner alone."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fedif_flower.errors import ConfigError
from fedif_flower.storage import config_folder, require_private, write_private


def default_key_path() -> Path:
    """Return ``$FEDIF_STATEMENT_KEY``, or ``statement-key.pem`` in the user's configuration.

    That is ``<$XDG_CONFIG_HOME or ~/.config>/fedif-flower``. Not beside the results: those are
    handed around.
    """
    named = os.environ.get("FEDIF_STATEMENT_KEY")
    return Path(named) if named else config_folder() / "statement-key.pem"


def load_or_make_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a PEM file, which is made with mode 0600 if it is not there.

    Raises
    ------
    ConfigError
        If it is no unencrypted Ed25519 key, or others may read it.
    StorageError
        If it cannot be made.
    """
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_private(path, pem)
        return key
    require_private(path, "key")
    try:
        loaded = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"key = {str(path)!r} is no unencrypted PEM key: {error}") from error
    if not isinstance(loaded, Ed25519PrivateKey):
        raise ConfigError(f"key = {str(path)!r} is no Ed25519 key")
    return loaded


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """Return the 32 bytes of a key's public half."""
    return key.public_key().public_bytes_raw()


def fingerprint(public: bytes) -> str:
    """Return what people compare: 16 bytes of the SHA-256 of a public key, in groups of four."""
    digits = hashlib.sha256(public).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))


def is_signed(public: bytes, signature: bytes, content: bytes) -> bool:
    """Return whether a signature is that of ``content`` by the holder of the private half."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True
