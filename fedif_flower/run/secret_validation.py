"""The part of the held-out data that pays and never weighs, drawn by a salt that nobody knows.

The server keeps one secret beside the key that signs statements. A run's salt is

    salt = HMAC-SHA256(secret, nonce),    commitment = SHA-256(salt)

with a nonce of its own, which checkpoints keep. Nonce and commitment are in ``provenance.json``
before the first round; the statement opens the salt, so that everyone can draw the same examples.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from fedif_flower.errors import ConfigError
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.seeding import torch_generator
from fedif_flower.storage import config_folder, require_private, write_private
from fedif_flower.valuation import Validation

NONCE = "paying_nonce"
COMMITMENT = "paying_commitment"
_BYTES = 32


def commitment_of(salt: str) -> str:
    """Return the commitment to a salt, which is published before the run."""
    return hashlib.sha256(salt.encode()).hexdigest()


def salt_of(nonce: str, path: Path | None = None) -> str:
    """Return the salt of a nonce.

    The server's secret, beside the key that signs statements, is made with mode 0600 if it is not
    there.

    Raises
    ------
    ConfigError
        If others may read the secret, or it is none.
    StorageError
        If it cannot be made.
    """
    path = path or config_folder() / "validation-secret"
    if not path.exists():
        write_private(path, secrets.token_hex(_BYTES).encode())
    require_private(path, "secret")
    try:
        secret = bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"secret = {str(path)!r} cannot be read: {error}") from error
    return hmac.new(secret, nonce.encode(), hashlib.sha256).hexdigest()


def paying_part(loaded: LoadedTask, salt: str) -> Validation:
    """Return as many test examples as the validation split has, drawn by a salt, by class.

    Their loss allows for as many wrong labels as that of the validation split.

    Nothing weighs by them, and nothing is trained on them: what the test split says of the model
    stays true.

    Raises
    ------
    ConfigError
        If the test split cannot be divided: its batches are no tensors, or it is no larger than the
        validation split.
    """
    count = int(loaded.validation.num_examples)
    part = loaded.test.sample(count, torch_generator("paying", int(salt, 16)))
    if part is loaded.test:
        raise ConfigError(
            "credit.secret-validation = true needs a test split of tensors with more examples than "
            f"the validation split's {count}"
        )
    return part.with_noise(loaded.validation.noise, loaded.validation.noise_interval)
