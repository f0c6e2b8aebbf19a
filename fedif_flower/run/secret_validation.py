"""Secret held-out data: members are paid by them, and no update is ever weighed by them.

They are test examples, drawn by a secret salt. The server keeps one secret beside the key that
signs statements. A run's salt and the commitment to it are

    salt = HMAC-SHA256(secret, nonce),    commitment = SHA-256(salt)

where the nonce is drawn for the run and kept in its checkpoints. Nonce and commitment are in
``provenance.json`` before the first round. The statement reveals the salt, so that everyone can
draw the same examples.

The secret data are examined like the validation split, and their loss is corrected for their own
share of wrong labels. Records hold that share, but do not say which examples look wrong: that would
tell which examples were drawn.
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
from fedif_flower.seeding import numpy_generator
from fedif_flower.storage import config_folder, make_private, require_private
from fedif_flower.valuation import Validation
from fedif_flower.valuation.examples import count_held_out
from fedif_flower.valuation.held_out import HeldOut
from fedif_flower.valuation.held_out_check import HeldOutCheck

# Keys in the provenance; checkpoints have the nonce and the examination, too.
NONCE = "paying_nonce"
COMMITMENT = "paying_commitment"
PAYING_KEY = "paying_held_out"  # The examination of the secret data.
PAYING_WITNESS = "paying_contradicted"  # In rounds.csv: the share of labels a model contradicts.
_BYTES = 32  # Of the server's secret.


def commitment_of(salt: str) -> str:
    """Return the commitment to a salt, which is published before the first round."""
    return hashlib.sha256(salt.encode()).hexdigest()


def secret_path() -> Path:
    """Return the file of this server's secret, beside the key that signs statements."""
    return config_folder() / "validation-secret"


def salt_of(nonce: str, path: Path | None = None) -> str:
    """Return the salt that belongs to a nonce, in hex.

    The server's secret is made, readable by its owner alone, if it is not there yet.

    Parameters
    ----------
    nonce : str
        The run's nonce.
    path : Path, optional
        The file of the secret. Default: :func:`secret_path`.

    Raises
    ------
    ConfigError
        If others may read the secret, or if it cannot be read.
    StorageError
        If the secret cannot be made.
    """
    path = path or secret_path()
    if not path.exists():
        make_private(path, secrets.token_hex(_BYTES).encode())
    require_private(path, "secret")
    try:
        secret = bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"secret = {str(path)!r} cannot be read: {error}") from error
    return hmac.new(secret, nonce.encode(), hashlib.sha256).hexdigest()


def paying_part(loaded: LoadedTask, salt: str) -> LoadedTask:
    """Return the task with another validation split: as many test examples, drawn by a salt.

    The draw is stratified by class. The loss of the new split is the task's own, not corrected for
    wrong labels. No update is weighed by these examples, and no model is trained on them, so that
    the test split still measures the model without bias.

    Raises
    ------
    ConfigError
        If no such part can be drawn: the test split's batches are no tensors, it is no larger than
        the validation split, or no target in the part counts.
    """
    count = count_held_out(loaded.validation)
    # PyTorch's generator would draw by 32 bits of the salt. Who knows the test split could try all
    # draws, and see by its receipts which of them gives the contributions that it is told.
    part = loaded.test.sample(count, numpy_generator("paying", int(salt, 16)))
    if part is loaded.test:
        raise ConfigError(
            f"credit.secret-validation = true draws {count} test examples, as many as the "
            "validation split has: the test split needs to have more, to consist of tensors, and "
            "to have targets that count among those drawn"
        )
    return replace(loaded, validation=part)


@dataclass(frozen=True)
class SecretData:
    """The secret data of a run, as they are before its first round.

    Attributes
    ----------
    nonce, commitment : str
        The nonce of the salt that they were drawn by, and the commitment to the salt.
    record : mapping
        What an examination found, and for which share of wrong labels the loss is corrected.
    validation : Validation
        The data, with the corrected loss.
    """

    nonce: str
    commitment: str
    record: Mapping[str, Any]
    validation: Validation

    @classmethod
    def of_run(
        cls, loaded: LoadedTask, check: HeldOutCheck, memory: Mapping[str, Any]
    ) -> SecretData:
        """Draw the data and examine them; a resumed run takes over what was found before.

        Parameters
        ----------
        loaded : LoadedTask
            The run's task.
        check : HeldOutCheck
            How the data are examined, and their loss corrected.
        memory : mapping
            :attr:`memory` of the run that this one is resumed from; empty: the run is new.
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
            record.pop("suspects", None)  # They would tell which examples were drawn.
        return cls(nonce, commitment_of(salt), record, corrected.validation)

    @property
    def provenance(self) -> dict[str, Any]:
        """What ``provenance.json`` holds about the data."""
        return {**self.memory, COMMITMENT: self.commitment}

    @property
    def memory(self) -> dict[str, Any]:
        """What checkpoints hold about the data."""
        return {NONCE: self.nonce, PAYING_KEY: dict(self.record)}

    @property
    def held_out(self) -> HeldOut | None:
        """What the examination found; ``None``: the data were not examined."""
        return recorded_examination(self.record)

    def remarks(self) -> list[str]:
        """Return remarks about the data for the log and the report, one sentence each."""
        remarks = []
        if self.held_out is not None:
            remarks.append(f"secret data, by which members are paid: {self.held_out.words()}")
        if self.record[NOISE]:
            remarks.append(
                f"the loss on the secret data is corrected for {corrected_words(self.record)}"
            )
        return remarks


def with_recorded_loss(part: LoadedTask, provenance: Mapping[str, Any]) -> Validation:
    """Return the data that members are paid by, with the loss corrected as the provenance says.

    Runs of earlier versions corrected it by what they found in the validation split.

    Parameters
    ----------
    part : LoadedTask
        The task whose validation split is the data that members are paid by.
    provenance : mapping
        The content of the run's ``provenance.json``.
    """
    return with_recorded_noise(part, provenance, examined_key(provenance)).validation


def is_secret(provenance: Mapping[str, Any]) -> bool:
    """Whether a run pays by secret data, and not by the data that it weighs by."""
    return COMMITMENT in provenance


def examined_key(provenance: Mapping[str, Any]) -> str:
    """Return the key in a provenance under which the examination of the paying data is."""
    return PAYING_KEY if PAYING_KEY in provenance else HELD_OUT_KEY


def witness_of(provenance: Mapping[str, Any]) -> str:
    """Return the column of ``rounds.csv`` with the share of paying labels that are contradicted."""
    return PAYING_WITNESS if is_secret(provenance) else WITNESS
