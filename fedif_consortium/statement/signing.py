"""The keys that sign statements: the operator's own, made on first use, and members'."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedif_consortium.evidence.keys import SigningKey, read_key_file
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
    """Return the operator's key in a file, which is made with mode 0600 if it is not there.

    Raises
    ------
    ConfigError
        If it is no unencrypted Ed25519 key, or others may read it.
    StorageError
        If it cannot be made.
    """
    if path.exists():
        loaded = load_key(path)
        if not isinstance(loaded, Ed25519PrivateKey):
            raise ConfigError(f"key = {str(path)!r} is no Ed25519 key")
        return loaded
    key = Ed25519PrivateKey.generate()
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key


def load_key(path: Path) -> SigningKey:
    """Return the private key in a file.

    Raises
    ------
    ConfigError
        If it is not there, no unencrypted key that signs, or others may read it.
    """
    key = read_key_file(path, "key")
    require_private(path, "key")
    return key
