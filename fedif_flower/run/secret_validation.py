"""The part of the held-out data that pays and never weighs, drawn by a salt that nobody knows.

The server keeps one secret beside the key that signs statements. A run's salt is

    salt = HMAC-SHA256(secret, nonce),    commitment = SHA-256(salt)

with a nonce of its own, which checkpoints keep. Nonce and commitment are in ``provenance.json``
before the first round; the statement opens the salt, so that everyone can draw the same examples.

What members are paid by is examined like the validation split, and its loss is corrected for its
own share of wrong labels. Records say which share that is, and of no example whether it looks
wrong: that would tell which examples they are.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.run.correction import (
    NOISE,
    Correction,
    corrected_task,
    corrected_words,
    recorded_examination,
    with_recorded_noise,
)
from fedif_flower.run.folder import HELD_OUT_KEY
from fedif_flower.run.held_out import WITNESS, examine
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.seeding import torch_generator
from fedif_flower.storage import config_folder, require_private, write_private
from fedif_flower.valuation import Validation
from fedif_flower.valuation.held_out import HeldOut
from fedif_flower.valuation.held_out_check import HeldOutCheck

NONCE = "paying_nonce"
COMMITMENT = "paying_commitment"
PAYING_KEY = "paying_held_out"  # In provenance and checkpoints: what was found in them.
PAYING_WITNESS = "paying_contradicted"  # In rounds.csv: how many labels a model contradicts.
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


def paying_part(loaded: LoadedTask, salt: str) -> LoadedTask:
    """Return the task with another validation split: as many test examples, drawn by a salt.

    They are drawn by class. Their loss is the task's own, which allows for no wrong labels. Nothing
    weighs by them, and nothing is trained on them: what the test split says of the model stays
    true.

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
    return replace(loaded, validation=part)


@dataclass(frozen=True)
class SecretData:
    """The data that pay in a run, as they are before its first round.

    Attributes
    ----------
    nonce, commitment : str
        Of the salt that they were drawn by.
    record : mapping
        What an examination found, and for which share of wrong labels the loss is corrected.
    validation : Validation
        They themselves, with the corrected loss.
    """

    nonce: str
    commitment: str
    record: Mapping[str, Any]
    validation: Validation

    @classmethod
    def of_run(
        cls, loaded: LoadedTask, check: HeldOutCheck, memory: Mapping[str, Any]
    ) -> SecretData:
        """Draw and examine them, or take over what an earlier attempt found.

        Parameters
        ----------
        loaded : LoadedTask
            The run's task.
        check : HeldOutCheck
            What is done about wrong labels.
        memory : mapping
            :attr:`memory` of the attempt that the run goes on from; empty: it begins.
        """
        nonce = str(memory.get(NONCE) or secrets.token_hex(16))
        salt = salt_of(nonce)
        part = paying_part(loaded, salt)
        if PAYING_KEY in memory:
            record = dict(memory[PAYING_KEY])
            corrected = with_recorded_noise(part, memory, PAYING_KEY)
        else:
            held_out = None
            if check.vet:
                held_out = examine(part, check.seconds, is_in_test=True)
            corrected, record = corrected_task(part, Correction.of(check, held_out), held_out)
            record.pop("suspects", None)  # They would tell which examples these are.
        return cls(nonce, commitment_of(salt), record, corrected.validation)

    @property
    def provenance(self) -> dict[str, Any]:
        """What ``provenance.json`` has of them."""
        return {**self.memory, COMMITMENT: self.commitment}

    @property
    def memory(self) -> dict[str, Any]:
        """What checkpoints have of them."""
        return {NONCE: self.nonce, PAYING_KEY: dict(self.record)}

    @property
    def held_out(self) -> HeldOut | None:
        """What the examination found; ``None``: there was none."""
        return recorded_examination(self.record)

    def remarks(self) -> list[str]:
        """Return what there is to say of them, a sentence each."""
        remarks = []
        if self.held_out is not None:
            remarks.append(f"secret data, which pay: {self.held_out.words()}")
        if self.record[NOISE]:
            remarks.append(f"their loss is corrected for {corrected_words(self.record)}")
        return remarks


def with_recorded_loss(part: LoadedTask, provenance: Mapping[str, Any]) -> Validation:
    """Return the data that pay with the loss that a run's provenance tells of.

    Runs of earlier versions corrected it for what they found in the validation split.
    """
    return with_recorded_noise(part, provenance, examined_key(provenance)).validation


def is_secret(provenance: Mapping[str, Any]) -> bool:
    """Tell whether a run pays by other held-out data than it weighs by."""
    return COMMITMENT in provenance


def examined_key(provenance: Mapping[str, Any]) -> str:
    """Return where a provenance says for which share the loss of what pays is corrected."""
    return PAYING_KEY if PAYING_KEY in provenance else HELD_OUT_KEY


def witness_of(provenance: Mapping[str, Any]) -> str:
    """Return the column of ``rounds.csv`` that says how many labels that pay are contradicted."""
    return PAYING_WITNESS if is_secret(provenance) else WITNESS
