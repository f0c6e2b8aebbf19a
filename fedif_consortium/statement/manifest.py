"""The manifest, the signed part of a statement: hashes of the model and of every file behind it.

``manifest.intoto.json`` is an envelope (DSSE) around an in-toto statement, as
``docs/statement-format.md`` describes it. One signature covers every page, by the pages' hashes.
The manifest names no member, so all members get the same file and can compare it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_public_key
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from fedif_consortium.evidence.attempts import MOST_ATTEMPTS, Attempt, Attempts, Sha256
from fedif_consortium.evidence.dsse import Envelope, read_envelope
from fedif_consortium.evidence.keys import VerifyingKey, fingerprint, is_allowed, key_id
from fedif_consortium.evidence.names import holder_of
from fedif_consortium.evidence.signed import first_error
from fedif_flower.errors import EvidenceError, StatementError
from fedif_flower.foreign import parse_json, read_whole, regular
from fedif_flower.messages.text import UNSHOWN, printable
from fedif_flower.run.folder import RunFolder
from fedif_flower.storage import (
    remove_leftovers,
    set_aside,
    sync_directory,
    sync_folder,
    temporary_sibling,
    writing,
)

PREDICATE_TYPE = "urn:fedif-flower:contributions:v2"
_OTHER_VERSION = re.compile(r"urn:fedif-flower:contributions:v[0-9]{1,4}")
PAYLOAD_TYPE = "application/vnd.in-toto+json"
ENVELOPE = "manifest.intoto.json"
OPERATOR = "the operator"
SALT = "validation-salt.txt"  # The salt that drew the secret data that pay.
ACCOUNT = "statement.json"
TABLE = "statement.csv"
PAGE = "statement.html"

# A SHA-256; empty: it is not known.
_Known = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]
# A path below the run's folder, in ASCII, so that it can be printed to a terminal.
_Path = Annotated[str, StringConstraints(pattern=r"^[ -~]{1,200}$")]
# One line of text, in letters of any script.
_Words = Annotated[str, StringConstraints(pattern=rf"^[^{UNSHOWN}]{{0,300}}$")]
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"  # \d has digits of any script.
_Time = Annotated[str, StringConstraints(pattern=_TIME)]


class _Object(BaseModel):
    """A JSON object that has these keys, in camel case, and no others."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class Agreed(_Object):
    """What members agreed to: the run's name, the attempt's number, the hash of its run config."""

    name: Annotated[str, Field(min_length=1, max_length=300)]
    attempt: Annotated[int, Field(ge=1, le=MOST_ATTEMPTS)]
    config: Sha256


class Manifest(_Object):
    """The predicate of the in-toto statement: what is said about a run's model.

    Attributes
    ----------
    run : str
        What the run is called.
    made : str
        When the statement was made: RFC 3339, UTC.
    contact : str
        Whom members may ask; empty: nobody was named.
    public_key : str
        The public key of the operator, who signed first: DER, SubjectPublicKeyInfo, in base64.
    agreed : Agreed, optional
        The attempt that this statement is about; ``None``: the run counts no attempts.
    attempts : list of Attempt
        All attempts at the run so far, this one last.
    head : str
        The size and the root of the chain of rounds for which members have receipts; empty: there
        are no receipts.
    settings : str
        Hash of the settings that can change a result; empty for an app of its own, whose settings
        are not known.
    validation : str
        Hash of the validation set; empty if its data are no tensors.
    code : str
        Hash of the package's source.
    made_with : str
        Hash of the code and the templates that made the statement.
    files : dict of str to str
        SHA-256 of every file but the model, by its path below the run's folder.
    """

    run: _Words
    made: _Time
    contact: _Words
    public_key: str
    agreed: Agreed | None
    attempts: Annotated[list[Attempt], Field(max_length=MOST_ATTEMPTS)]
    head: str
    settings: _Known
    validation: _Known
    code: Sha256
    made_with: Sha256
    files: dict[_Path, Sha256]

    @property
    def declared(self) -> Attempts | None:
        """The attempts that the manifest declares; ``None``: the run counts none.

        Raises
        ------
        ValueError
            If ``agreed`` is missing, or is not about the last attempt.
        """
        if self.agreed is None and not self.attempts:
            return None
        if self.agreed is None:
            raise ValueError("it has attempts at a run that has no name")
        attempts = Attempts(name=self.agreed.name, attempts=tuple(self.attempts))
        if (attempts.number, attempts.last.config) != (self.agreed.attempt, self.agreed.config):
            raise ValueError("its last attempt is not the one that was agreed to")
        return attempts

    @property
    def signer(self) -> VerifyingKey:
        """The operator's public key.

        Raises
        ------
        ValueError, UnsupportedAlgorithm
            If ``public_key`` is no public key, or one of a kind that is not allowed.
        """
        key = load_der_public_key(base64.b64decode(self.public_key, validate=True))
        if not is_allowed(key):
            raise ValueError("a public key of another kind")
        return key


class _Subject(_Object):
    """The model's file and its SHA-256."""

    name: Literal["model.pt"]
    digest: Annotated[dict[Literal["sha256"], Sha256], Field(min_length=1)]


class SignedStatement(_Object):
    """An in-toto statement: the predicate says something, and the subject is what it is about."""

    kind: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[list[_Subject], Field(min_length=1, max_length=1)]
    predicate_type: Literal["urn:fedif-flower:contributions:v2"]
    predicate: Manifest

    @model_validator(mode="after")
    def _is_about_the_model_alone(self) -> Self:
        (model,) = self.subject
        if model.name in self.predicate.files:
            # The model would then have two digests, and a reader might take either.
            raise ValueError(f"{model.name} is its subject, and no other file")
        return self

    def envelope(self) -> Envelope:
        """Return an envelope that holds the statement and has no signature yet."""
        text = json.dumps(self.model_dump(by_alias=True), separators=(",", ":"))
        return Envelope(payload_type=PAYLOAD_TYPE, payload=text.encode())

    @property
    def files(self) -> dict[str, str]:
        """SHA-256 of every file, the model's included, by its path below the run's folder."""
        (model,) = self.subject
        return {model.name: model.digest["sha256"], **self.predicate.files}


def statement_of(model: str, digest: str, manifest: Manifest) -> SignedStatement:
    """Return the in-toto statement of a manifest.

    Parameters
    ----------
    model : str
        The name of the model's file.
    digest : str
        The SHA-256 of that file.
    manifest : Manifest
        What is said about the model.
    """
    return SignedStatement.model_validate(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": model, "digest": {"sha256": digest}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": manifest,
        }
    )


def hashes_of(provenance: Mapping[str, object]) -> dict[str, str]:
    """Return the hashes of settings, validation set and code in a run's provenance."""
    return {name: str(provenance[f"{name}_sha256"]) for name in ("settings", "validation", "code")}


class SignedBy(NamedTuple):
    """Who made a signature, and with which key.

    ``name`` is :data:`OPERATOR`, a member's name, or empty for a key that is not known. ``key`` is
    the key's fingerprint; for a key that is not known, the id that stands beside the signature.
    """

    name: str
    key: str


class ReadStatement(NamedTuple):
    """A statement that was read: its envelope, its content, and who signed it."""

    envelope: Envelope
    statement: SignedStatement
    signers: tuple[SignedBy, ...]


def read_signed(
    folder: Path, members: Mapping[str, VerifyingKey] = MappingProxyType({})
) -> ReadStatement:
    """Read the manifest in a folder, and check that it is as the operator signed it.

    The operator's key is the one in the manifest itself. Whether that key is the operator's is for
    the caller to compare.

    Parameters
    ----------
    folder : Path
        The folder that holds ``manifest.intoto.json``.
    members : mapping of str to public key
        The keys of members who may have signed too, by name.

    Raises
    ------
    StatementError
        If the manifest is missing, was changed, is of another version, or has a false signature.
    """
    content = read_file(folder, ENVELOPE)
    try:
        envelope = read_envelope(content, ENVELOPE)
        statement = _read_statement(envelope.payload)
        keys = {**members, OPERATOR: statement.predicate.signer}
        signers = _signers(envelope, keys)
        # Other tools find the operator's signature by the key id beside it, so that has to be right
        # too, although nobody signed it.
        key_ids = [signature.keyid for signature in envelope.signatures]
        names = [signer.name for signer in signers]
        if key_id(keys[OPERATOR]) not in key_ids or OPERATOR not in names:
            raise EvidenceError("the operator's signature is not there")
        if envelope.payload_type != PAYLOAD_TYPE or envelope.to_bytes() != content:
            raise EvidenceError(
                "it is not written as fedif writes it; `fedif statement merge` takes over "
                "signatures that were made with other tools"
            )
    except (EvidenceError, ValueError, UnsupportedAlgorithm) as error:
        raise StatementError(f"{ENVELOPE} was changed: {printable(first_error(error))}") from error
    return ReadStatement(envelope, statement, signers)


def _signers(envelope: Envelope, keys: Mapping[str, VerifyingKey]) -> tuple[SignedBy, ...]:
    """Return who signed an envelope; a holder of several keys is there once for each of them.

    Raises
    ------
    EvidenceError
        If a signature names one of the keys but is not by that key.
    """
    signers = []
    for signature in envelope.signatures:
        name = envelope.signer(signature, keys)
        if name:
            signers.append(SignedBy(holder_of(name), fingerprint(keys[name])))
        else:
            # The key is not known, so the signature was not checked. Its id is what somebody wrote
            # beside it.
            signers.append(SignedBy("", printable(signature.keyid, 64)))
    return tuple(dict.fromkeys(signers))


def _read_statement(payload: bytes) -> SignedStatement:
    """Return the statement in an envelope's payload.

    Raises
    ------
    StatementError
        If the statement is of another version, whose keys mean something else.
    ValueError
        If the payload is no statement.
    """
    content = parse_json(payload)
    kind = None
    if isinstance(content, dict):
        kind = content.get("predicateType")
    if kind != PREDICATE_TYPE and _OTHER_VERSION.fullmatch(str(kind)):
        raise StatementError(
            f"{ENVELOPE} is a statement of another version, {kind}: here is {PREDICATE_TYPE}, and "
            "what each of them binds is not the same; check it with the version of fedif-flower "
            "that made it"
        )
    statement = SignedStatement.model_validate(content)
    statement.predicate.declared  # noqa: B018 (raises ValueError)
    return statement


def envelope_of(path: Path) -> Path:
    """Return the path of the manifest of a run's folder, of a statement's folder, or of a page."""
    if path.is_file():
        return path.parent / ENVELOPE
    if is_statement(path):
        return path / ENVELOPE
    return RunFolder(path).statement / ENVELOPE


def is_statement(path: Path) -> bool:
    """Return whether a folder is that of a statement, and not that of its run."""
    return (path / ENVELOPE).is_file()


def read_file(folder: Path, name: str) -> bytes:
    """Return a file's content.

    Raises
    ------
    StatementError
        If the file cannot be read; the message names it.
    """
    try:
        return read_whole(folder / name)
    except OSError as error:
        raise StatementError(f"{folder / name} cannot be read: {error.strerror}") from error


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a regular file in hex."""
    with open(path, "rb", opener=regular) as file:  # Path.open takes no opener
        return hashlib.file_digest(file, "sha256").hexdigest()


def put_folder(folder: Path, content: Mapping[str, bytes]) -> None:
    """Write a folder with these files, completely or not at all.

    A folder that is there already gets another name. Once this function returns, the new folder
    survives a power cut: so the caller may delete what it was made from.

    Parameters
    ----------
    folder : Path
        The folder to write.
    content : mapping of str to bytes
        The files by their paths in the folder.

    Raises
    ------
    StorageError
        If the files cannot be written, since the disk is full, for example.
    """
    fresh = temporary_sibling(folder)
    try:
        with writing(folder):
            remove_leftovers(folder)
            for name, data in content.items():
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                (fresh / name).write_bytes(data)
            sync_folder(fresh)
            set_aside(folder)
            fresh.replace(folder)
            sync_directory(folder.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
