"""Members' signatures on a statement: a member signs it, and the operator collects signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedif_consortium.evidence.dsse import Envelope, read_envelope
from fedif_consortium.evidence.keys import SigningKey, VerifyingKey, key_id
from fedif_consortium.evidence.names import holder_of
from fedif_consortium.page import MAX_PAGE_BYTES
from fedif_consortium.statement.manifest import OPERATOR, envelope_of, read_signed
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import EvidenceError, StatementError
from fedif_flower.foreign import read_whole
from fedif_flower.messages.text import printable
from fedif_flower.storage import write_atomically


def sign_statement(
    path: Path,
    key: SigningKey,
    operator: str = "",
    members: Mapping[str, VerifyingKey] | None = None,
) -> Path:
    """Verify a statement and add a signature to its manifest; return the manifest's path.

    Parameters
    ----------
    path : Path
        A run's folder, or a member's page with the manifest beside it.
    key : SigningKey
        The key of the member who agrees with the statement.
    operator : str
        The fingerprint that the operator's key must have; empty: any.
    members : mapping of str to public key, optional
        The keys of members who may have signed already, by name.

    Raises
    ------
    StatementError, ConfigError, EvidenceError
        If the statement does not verify, or this key has signed it already; nothing is signed then.
    """
    signed = verify(path, operator, members).signed.envelope.signed_by(key)
    target = envelope_of(path)
    write_atomically(target, signed.to_bytes())
    return target


def merge_signatures(
    path: Path, files: Sequence[Path], members: Mapping[str, VerifyingKey]
) -> dict[str, bool]:
    """Add members' signatures from their own copies of a statement's manifest.

    Parameters
    ----------
    path : Path
        A run's folder, or a page with the manifest beside it: the signatures are added there.
    files : sequence of Path
        Copies of ``manifest.intoto.json`` as members sent them back.
    members : mapping of str to public key
        The members' keys, by name; only their signatures are added.

    Returns
    -------
    dict of str to bool
        For each member who signed, whether the signature is new.

    Raises
    ------
    StatementError
        If a file cannot be read, is a copy of another statement, has a false signature or one by
        nobody in ``members``, or brings more signatures than a statement may have. The message
        names the file. Nothing is added then.
    """
    target = envelope_of(path)
    signed = read_signed(target.parent, members)
    envelope = signed.envelope
    keys = {**members, OPERATOR: signed.statement.predicate.signer}
    is_new = {}  # By the name of the member who signed.
    for signer in signed.signers:
        if signer.name not in ("", OPERATOR):
            is_new[signer.name] = False
    for file in files:
        try:
            for name, signature in _read_signatures(file, envelope, keys):
                holder = holder_of(name)
                if name != OPERATOR and holder not in is_new:
                    envelope = envelope.with_signature(key_id(keys[name]), signature)
                    is_new[holder] = True
        except (EvidenceError, OSError) as error:
            raise StatementError(f"{file}: {error}") from error
    write_atomically(target, envelope.to_bytes())
    return is_new


def _read_signatures(
    file: Path, envelope: Envelope, keys: Mapping[str, VerifyingKey]
) -> list[tuple[str, bytes]]:
    """Return the signatures on another copy of an envelope, each with its key's name.

    Raises
    ------
    EvidenceError
        If the file is no copy of the envelope, or a signature is false or by none of the keys.
    OSError
        If the file cannot be read.
    """
    copy = read_envelope(read_whole(file, MAX_PAGE_BYTES), str(file))
    if copy.signed_bytes() != envelope.signed_bytes():
        raise EvidenceError("it is of another statement")
    signatures = []
    for signature in copy.signatures:
        name = copy.signer(signature, keys)
        if not name:
            key = printable(signature.keyid, 64)
            raise EvidenceError(f"a signature with key {key!r}, which is no member's")
        signatures.append((name, signature.sig))
    return signatures
