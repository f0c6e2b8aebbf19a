"""The keeper's key, which opens boxes."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedif_flower.errors import ConfigError

KeeperKey = X25519PrivateKey
"""What opens boxes."""


def read_keeper_key(text: str, name: str) -> X25519PublicKey:
    """Return the keeper's public key from its 64 hexadecimal digits.

    Raises
    ------
    ConfigError
        If the text is something else, by ``name``.
    """
    try:
        return X25519PublicKey.from_public_bytes(bytes.fromhex(text))
    except ValueError as error:
        raise ConfigError(
            f"{name} = {text!r}; allowed: a keeper's public key, 64 hexadecimal digits"
        ) from error
