"""What others do with a statement: check it, sign what they checked, collect signatures.

Checked are signature, hashes and sums; the first thing that is wrong is named.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from fedif_consortium.evidence.attempts import Attempts, config_hash, read_attempts
from fedif_consortium.evidence.bound_rows import RUN_CONFIG
from fedif_consortium.evidence.check_receipts import check_receipts
from fedif_consortium.evidence.check_signatures import (
    SignedMember,
    check_signatures,
    read_signatures,
)
from fedif_consortium.evidence.dsse import read_envelope
from fedif_consortium.evidence.held_receipts import HeldReceipts
from fedif_consortium.evidence.keys import SigningKey, VerifyingKey, fingerprint, key_id
from fedif_consortium.evidence.names import holder_of, require_apart
from fedif_consortium.page import MAX_PAGE_BYTES
from fedif_consortium.statement.account import Account, settle
from fedif_consortium.statement.bundle import account_json, contents, parse_budget, read_account
from fedif_consortium.statement.manifest import (
    ACCOUNT,
    ENVELOPE,
    OPERATOR,
    Manifest,
    Signed,
    SignedStatement,
    file_hash,
    hashes_of,
    read_file,
    read_signed,
)
from fedif_consortium.statement.pages import made_with
from fedif_consortium.statement.records import ROUNDING, read_names, read_run, require_consistent
from fedif_flower.errors import ConfigError, EvidenceError, StatementError
from fedif_flower.foreign import read_whole, refused_as
from fedif_flower.messages.text import printable
from fedif_flower.run.folder import RunFolder
from fedif_flower.storage import write_atomically


@dataclass(frozen=True)
class Verified:
    """What was found right.

    Attributes
    ----------
    signed : Signed
        The statement, and whose signatures it has; those of nobody known were not checked.
    not_here : tuple of str
        Files whose hashes are signed but which are not there, and so were not checked.
    members : tuple of SignedMember
        Who signed its updates; empty: nobody did.
    receipts : tuple of HeldReceipts
        What members kept, which is as the records say.
    redone : tuple of int
        Rounds of which members have receipts twice: the run was resumed, and did them again.
    chosen : tuple of str
        What of the pay the run config does not fix: the operator chose it with the statement.
    """

    signed: Signed
    not_here: tuple[str, ...] = ()
    members: tuple[SignedMember, ...] = ()
    receipts: tuple[HeldReceipts, ...] = ()
    redone: tuple[int, ...] = ()
    chosen: tuple[str, ...] = ()

    @property
    def declared(self) -> Attempts | None:
        """The attempts at the run that the statement declares; ``None``: they are not counted."""
        return self.manifest.declared

    @property
    def manifest(self) -> Manifest:
        """What the statement says."""
        return self.signed.statement.predicate

    @property
    def key(self) -> str:
        """The fingerprint of the operator's key: compare it with what the operator told you."""
        return fingerprint(self.manifest.signer)


def verify(
    path: Path,
    key: str = "",
    members: Mapping[str, VerifyingKey] | None = None,
    receipts: Sequence[Path] = (),
) -> Verified:
    """Check a run's statement, or what was handed on of one.

    Parameters
    ----------
    path : Path
        A run's folder; its ``statement`` alone, away from the run; or a member's page with the
        manifest beside it.
    key : str
        The fingerprint that the operator's key must have; empty: any, which the caller compares.
    members : mapping of str to public key, optional
        Who may have signed updates and the statement, by name; see
        :mod:`~fedif_consortium.evidence.check_signatures`. Beside a page there are no updates, and
        they say who signed the statement alone.
    receipts : sequence of Path
        Members' ``receipts-dir``, see :mod:`~fedif_consortium.evidence.check_receipts`.

    Raises
    ------
    StatementError
        Naming what was changed, is missing, or does not follow from the records.
    ConfigError
        If there is no statement, or a part of one is to be checked against more than itself.
    """
    if _is_within_its_run(path):
        path = path.absolute().parent
    is_page, run = path.is_file(), RunFolder(path)
    is_alone = _is_statement(path)
    if is_alone and (run.statement.exists() or run.results()):
        raise StatementError(f"{ENVELOPE} lies beside a run's records, and belongs below them")
    if (is_page or is_alone) and receipts:
        what = "page" if is_page else "statement without its run"
        raise ConfigError(f"{str(path)!r} is a {what}; receipts are checked against a run's folder")
    if not is_page and not is_alone and not run.statement.is_dir():
        raise ConfigError(f"{str(path)!r} is no run with a statement: `fedif statement` makes one")
    found = Verified(read_signed(envelope_of(path).parent, members or {}))
    if key and key.replace(" ", "") != found.key.replace(" ", ""):
        raise StatementError(f"the statement is signed by another key: {found.key}")
    if is_page:
        digest = hashlib.sha256(read_file(path.parent, path.name)).hexdigest()
        files = found.signed.statement.files.items()
        if digest not in {own for name, own in files if name.endswith(".html")}:
            raise StatementError(f"{path.name} is no page of this statement, or was changed")
        return found
    if is_alone:
        return replace(found, not_here=_check_alone(path, found.signed.statement))
    with refused_as(StatementError, "the records cannot be read"):
        _require_same_attempts(run, found.manifest)
        not_here = _check_files(run, found.signed.statement)
        _check_run_config(run.provenance.read())
        account = _check_account(run, found.manifest)
        names = account.names, read_names(run.names.path)
        for called in names:
            _require_apart(called)
        signed = read_signatures(run)
        checked = check_signatures(run, signed, names, members)
        declared = found.manifest.declared
        held, redone = check_receipts(
            run,
            found.manifest.head,
            signed,
            receipts,
            declared=declared,
            names=names,
            trusted=members is not None,
        )
        chosen = _check_terms(account, run.settings())
        return Verified(found.signed, not_here, checked, held, redone, chosen)


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
        Of the member who agrees.
    operator : str
        The fingerprint that the operator's key must have; empty: any.
    members : mapping of str to public key, optional
        Who else may have signed, by name.

    Raises
    ------
    StatementError, ConfigError, EvidenceError
        If it is not verified, or this key has signed it already; nothing is signed then.
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
        A run's folder, or a page with the manifest beside it: what they are added to.
    files : sequence of Path
        ``manifest.intoto.json`` as members sent it back.
    members : mapping of str to public key
        Whose signatures are taken, by name.

    Returns
    -------
    dict of str to bool
        Who signed, and whether that was not known before.

    Raises
    ------
    StatementError
        Naming the file that is of another statement, or has a signature that is false or of
        nobody in ``members``; nothing is added then.
    """
    target = envelope_of(path)
    signed = read_signed(target.parent, members)
    envelope, keys = signed.envelope, {**members, OPERATOR: signed.statement.predicate.signer}
    added = {signer.name: False for signer in signed.signers if signer.name not in ("", OPERATOR)}
    for file in files:
        try:
            other = read_envelope(read_whole(file, MAX_PAGE_BYTES), str(file))
            if other.signed_bytes() != envelope.signed_bytes():
                raise EvidenceError("it is of another statement")
            for signature in other.signatures:
                name = other.signer(signature, keys)
                if not name:
                    key = printable(signature.keyid, 64)
                    raise EvidenceError(f"a signature with key {key!r}, which is no member's")
                holder = holder_of(name)
                if name != OPERATOR and holder not in added:
                    envelope = envelope.with_signature(key_id(keys[name]), signature.sig)
                    added[holder] = True
        except (EvidenceError, OSError) as error:
            raise StatementError(f"{file}: {error}") from error
    write_atomically(target, envelope.to_bytes())
    return added


def envelope_of(path: Path) -> Path:
    """Return where the manifest of a run's folder, or beside a page, lies."""
    if path.is_file():
        return path.parent / ENVELOPE
    return (path if _is_statement(path) else RunFolder(path).statement) / ENVELOPE


def _is_statement(path: Path) -> bool:
    """Return whether a folder is a statement's own, and not its run's."""
    return (path / ENVELOPE).is_file()


def _is_within_its_run(path: Path) -> bool:
    """Return whether a statement's folder lies where its run left it."""
    run = RunFolder(path.absolute().parent)
    return (
        _is_statement(path) and path.absolute() == run.statement and run.provenance.path.is_file()
    )


def _check_alone(folder: Path, statement: SignedStatement) -> tuple[str, ...]:
    """Check the files of a statement without its run; return what is not here.

    Raises
    ------
    StatementError
        Naming what is missing, was changed, or is no part of it.
    """
    name = RunFolder(folder).statement.name
    own = {path: digest for path, digest in statement.files.items() if path.startswith(f"{name}/")}
    _require_no_link(folder.rglob("*"), folder)
    for path, digest in own.items():
        _require_within(path)
        _require_unchanged(folder / path.removeprefix(f"{name}/"), path, digest)
    there = {f"{name}/{p.relative_to(folder).as_posix()}" for p in folder.rglob("*") if p.is_file()}
    _require_known(there, {*own, f"{name}/{ENVELOPE}"})
    return tuple(path for path in statement.files if path not in own)


def _require_apart(names: Mapping[int, str]) -> None:
    """Raise StatementError where a member's name reads as another's."""
    try:
        require_apart(names.values(), "the members' names:")
    except ConfigError as error:
        raise StatementError(str(error)) from error


def _require_within(name: str) -> None:
    """Raise StatementError for a file of the manifest that is not one of the run's folder."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise StatementError(f"{name!r:.200} in the manifest lies outside of the run's folder")


def _require_unchanged(path: Path, name: str, digest: str) -> None:
    """Raise StatementError unless the file is there, as the statement has it."""
    if not path.is_file():
        raise StatementError(f"{name} is missing")
    if file_hash(path) != digest:
        raise StatementError(f"{name} was changed")


def _require_no_link(paths: Iterable[Path], root: Path) -> None:
    """Raise StatementError for a link: what it leads to may change after it was checked."""
    if links := sorted(path for path in paths if path.is_symlink()):
        raise StatementError(f"{links[0].relative_to(root).as_posix()} is a link")


def _require_known(names: Set[str], known: Set[str]) -> None:
    """Raise StatementError for a file that the statement does not name."""
    if unknown := sorted(names - known):
        raise StatementError(f"{unknown[0]} is no part of the statement")


def _check_files(run: RunFolder, statement: SignedStatement) -> tuple[str, ...]:
    """Return what is not there; raise StatementError for what differs, or is too much."""
    # Large files that others need not be given; where they are not there, that is said.
    not_here = []
    for name, digest in statement.files.items():
        _require_within(name)
        path = run.path / name
        may_be_away = name == run.model.name or name.startswith(f"{run.updates.name}/")
        if may_be_away and not path.is_file():
            not_here.append(name)
        else:
            _require_unchanged(path, name, digest)
    folder = run.statement
    _require_no_link((folder, *folder.rglob("*")), run.path)
    own = [p.relative_to(run.path).as_posix() for p in folder.rglob("*") if p.is_file()]
    _require_known({*own, *run.results()}, {*statement.files, f"{folder.name}/{ENVELOPE}"})
    return tuple(not_here)


def _check_account(run: RunFolder, manifest: Manifest) -> Account:
    """Return the account, or raise StatementError: it, or a page, is not of the records."""
    told = read_file(run.statement, ACCOUNT)
    account = read_account(told)
    records = read_run(run.path, account.names)
    for name, digest in hashes_of(records.provenance).items():
        if getattr(manifest, name) != digest:
            raise StatementError(f"{run.provenance.path.name} has another hash of the {name}")
    records.salt()
    require_consistent(records)
    again = settle(
        *(records, account.budget_cents, account.pay_by, account.ties, account.first_round)
    )
    _require_same(json.loads(told), json.loads(account_json(again)), ACCOUNT)
    # Another version may word or draw things differently.
    if manifest.made_with == made_with():
        for name, content in contents(account, records, manifest).items():
            if read_file(run.statement, name) != content:
                raise StatementError(f"{name} does not show what {ACCOUNT} says")
    return account


def _check_terms(account: Account, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what of the pay was chosen with the statement.

    Raises
    ------
    StatementError
        Naming what the run config says otherwise: members agreed to that.
    """
    cents, budget = account.budget_cents, str(config.get("statement.budget", ""))
    shared = "" if cents is None else f"{cents // 100}.{cents % 100:02}"
    if budget and parse_budget(budget) != cents:
        raise StatementError(
            f"the statement shares out {shared or 'nothing'}; members agreed to a run with "
            f"statement.budget = {budget!r}"
        )
    chosen = [f"budget {shared}"] if shared and not budget else []
    for key, value in (("pay-by", account.pay_by), ("ties", account.ties)):
        agreed = str(config.get(f"statement.{key}", ""))
        if agreed and agreed != value:
            raise StatementError(
                f"the statement has {key} = {value!r}; members agreed to a run with "
                f"statement.{key} = {agreed!r}"
            )
        if not agreed:
            chosen.append(f"{key} {value}")
    if account.first_round > 1:
        chosen.append(f"from round {account.first_round} on")
    return tuple(chosen)


def _require_same_attempts(run: RunFolder, manifest: Manifest) -> None:
    """Raise StatementError where records and manifest are of different attempts at a run.

    It comes first: else the first file that differs would be called changed. Records that cannot
    be read are named with the other files.
    """
    try:
        found = read_attempts(run.provenance.read())
    except (OSError, ConfigError, EvidenceError):
        return
    declared = manifest.declared
    if found != declared:
        raise StatementError(
            f"the manifest is of {_in_words(declared)}, and {run.provenance.path.name} is of "
            f"{_in_words(found)}"
        )


def _check_run_config(provenance: Mapping[str, Any]) -> None:
    """Raise StatementError unless the run config is the one that members agreed to."""
    try:
        attempts = read_attempts(provenance)
    except EvidenceError as error:
        raise StatementError(str(error)) from error
    if attempts is not None and config_hash(provenance[RUN_CONFIG]) != attempts.last.config:
        raise StatementError("provenance.json has another run config than members agreed to")


def _in_words(attempts: Attempts | None) -> str:
    if attempts is None:
        return "a run whose attempts are not counted"
    name, run = printable(attempts.name), attempts.last.run[:8]
    return f"attempt {attempts.number} at run {name!r} (id {run})"


def _require_same(told: Any, found: Any, where: str) -> None:
    """Raise StatementError where two JSON values differ by more than rounding."""
    if isinstance(told, dict) and isinstance(found, dict) and told.keys() == found.keys():
        for key in told:
            _require_same(told[key], found[key], f"{where}: {key}")
    elif isinstance(told, list) and isinstance(found, list) and len(told) == len(found):
        for i, (one, other) in enumerate(zip(told, found, strict=True)):
            _require_same(one, other, f"{where}[{i}]")
    else:
        is_same = type(told) is type(found) and told == found
        if not is_same and isinstance(told, float) and isinstance(found, float):
            is_same = math.isclose(told, found, rel_tol=ROUNDING, abs_tol=1e-15)
        if not is_same:
            raise StatementError(f"{where} is {told!r:.80}, but the records give {found!r:.80}")
