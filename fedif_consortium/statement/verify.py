"""Checking a statement: its signatures, its hashes, and that it follows from the run's records.

The error names the first thing that is wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from fedif_consortium.evidence.attempts import Attempts, read_attempts
from fedif_consortium.evidence.check_receipts import LostUpdate, check_receipts
from fedif_consortium.evidence.check_signatures import (
    SignedMember,
    check_signatures,
    read_signatures,
)
from fedif_consortium.evidence.held_receipts import HeldReceipts
from fedif_consortium.evidence.keys import (
    VerifyingKey,
    content_fingerprint,
    fingerprint,
    public_der,
)
from fedif_consortium.evidence.names import require_apart
from fedif_consortium.evidence.part import run_id
from fedif_consortium.statement.account import Account, settle
from fedif_consortium.statement.agreed import check_run_config
from fedif_consortium.statement.bundle import (
    NAMES,
    account_json,
    amount_text,
    contents,
    parse_budget,
    read_account,
    require_members,
)
from fedif_consortium.statement.consistency import ROUNDING, require_consistent
from fedif_consortium.statement.held_out import is_payable
from fedif_consortium.statement.manifest import (
    ACCOUNT,
    ENVELOPE,
    Manifest,
    ReadStatement,
    SignedStatement,
    envelope_of,
    file_hash,
    hashes_of,
    is_statement,
    read_file,
    read_signed,
)
from fedif_consortium.statement.members_names import read_names
from fedif_consortium.statement.pages import made_with
from fedif_consortium.statement.records import read_run
from fedif_flower.errors import ConfigError, EvidenceError, StatementError
from fedif_flower.foreign import refused_as
from fedif_flower.messages.text import printable
from fedif_flower.run.folder import RunFolder


@dataclass(frozen=True)
class Verified:
    """A statement that was checked, and what was found.

    Attributes
    ----------
    signed : ReadStatement
        The statement and its signatures; signatures by keys that are not known were not checked.
    not_here : tuple of str
        Files whose hashes are signed, but which are not there, so that they were not checked.
    members : tuple of SignedMember
        The members that signed updates, and how many; empty: nobody signed any.
    receipts : tuple of HeldReceipts
        The members' receipts, which agree with the records.
    redone : tuple of int
        Rounds for which members have two versions of receipts: the run was resumed, and did these
        rounds again.
    lost : tuple of LostUpdate
        Updates that members sent, and of which the records say that no reply came.
    chosen : tuple of str
        Terms of pay that the run config leaves open, so that the operator chose them.
    num_members : int
        How many members the statement has; 0 where the records are not here.
    last_round, planned_rounds : int
        The last round of the records, and ``num-server-rounds`` of the run config; 0: not known.
    """

    signed: ReadStatement
    not_here: tuple[str, ...] = ()
    members: tuple[SignedMember, ...] = ()
    receipts: tuple[HeldReceipts, ...] = ()
    redone: tuple[int, ...] = ()
    lost: tuple[LostUpdate, ...] = ()
    chosen: tuple[str, ...] = ()
    num_members: int = 0
    last_round: int = 0
    planned_rounds: int = 0

    @property
    def declared(self) -> Attempts | None:
        """The attempts at the run that the statement declares; ``None``: they are not counted."""
        return self.manifest.declared

    @property
    def manifest(self) -> Manifest:
        """The content of the statement."""
        return self.signed.statement.predicate

    @property
    def has_records(self) -> bool:
        """Whether the run's records were here and checked, not its pages or its statement alone."""
        return self.num_members > 0

    @property
    def digest(self) -> str:
        """The fingerprint of the signed content, which is the same for all members."""
        return content_fingerprint(self.signed.envelope.payload)

    @property
    def key(self) -> str:
        """The fingerprint of the operator's key, to be compared with the one the operator gave."""
        return fingerprint(self.manifest.signer)


def verify(
    path: Path,
    key: str = "",
    members: Mapping[str, VerifyingKey] | None = None,
    receipts: Sequence[Path] = (),
) -> Verified:
    """Check a run's statement, or the part of a statement that somebody was given.

    Parameters
    ----------
    path : Path
        A run's folder; a ``statement`` folder alone, away from its run; or a member's page with the
        manifest beside it. The last two are checked by their signatures and hashes alone.
    key : str
        The fingerprint that the operator's key must have; empty: any key, so that the caller has to
        compare :attr:`Verified.key`.
    members : mapping of str to public key, optional
        The keys of members who may have signed updates and the statement, by name; see
        :mod:`~fedif_consortium.evidence.check_signatures`. Away from a run there are no updates,
        and the keys only tell who signed the statement.
    receipts : sequence of Path
        Members' ``receipts-dir``, see :mod:`~fedif_consortium.evidence.check_receipts`.

    Raises
    ------
    StatementError
        If something was changed, is missing, or does not follow from the records; the message names
        it.
    ConfigError
        If there is no statement, or receipts are given without the run's folder.
    """
    if _is_within_its_run(path):
        path = path.absolute().parent
    run = RunFolder(path)
    is_page = path.is_file()
    is_alone = is_statement(path)
    if is_alone and (run.statement.exists() or run.results()):
        raise StatementError(f"{ENVELOPE} lies beside a run's records, and belongs below them")
    if (is_page or is_alone) and receipts:
        kind = "statement without its run"
        if is_page:
            kind = "page"
        raise ConfigError(f"{str(path)!r} is a {kind}; receipts are checked against a run's folder")
    if not is_page and not is_alone and not run.statement.is_dir():
        raise ConfigError(f"{str(path)!r} is no run with a statement: `fedif statement` makes one")
    signed = read_signed(envelope_of(path).parent, members or {})
    verified = Verified(signed)
    if key and key.replace(" ", "") != verified.key.replace(" ", ""):
        raise StatementError(f"the statement is signed by another key: {verified.key}")
    if is_page:
        _check_page(path, signed.statement)
        return verified
    if is_alone:
        return replace(verified, not_here=_find_absent_without_run(path, signed.statement))
    with refused_as(StatementError, "the records cannot be read"):
        return _verify_run(run, signed, members, receipts)


def _verify_run(
    run: RunFolder,
    signed: ReadStatement,
    members: Mapping[str, VerifyingKey] | None,
    receipts: Sequence[Path],
) -> Verified:
    """Check a statement against the records of its run, for :func:`verify`."""
    manifest = signed.statement.predicate
    _require_same_attempts(run, manifest)
    not_here = _find_absent_files(run, signed.statement)
    _require_declared_run(run, manifest)
    _require_signer_of_heads(run, manifest)
    agreed = check_run_config(run)
    account = _read_checked_account(run, manifest)
    # The names in the statement, and the names under which the operator registered members.
    names = (account.names, read_names(run.names.path))
    for names_of_members in names:
        _require_apart(names_of_members.values())
    # Pages call members without a name "client 4", for example: nobody else may have that name.
    _require_apart([*account.names.values(), *(member.name for member in account.members)])
    signatures = read_signatures(run)
    signing_members = check_signatures(run, signatures, names, members)
    checked = check_receipts(
        run,
        manifest.head,
        signatures,
        receipts,
        declared=manifest.declared,
        names=names,
        trusted=members is not None,
    )
    return Verified(
        signed,
        not_here=not_here,
        members=signing_members,
        receipts=checked.held,
        redone=checked.redone,
        lost=checked.lost,
        chosen=_find_chosen_terms(account, agreed),
        num_members=len(account.members),
        last_round=account.last_round,
        planned_rounds=int(agreed.get("num-server-rounds") or 0),
    )


def _is_within_its_run(path: Path) -> bool:
    """Return whether a statement's folder still lies in its run's folder."""
    run = RunFolder(path.absolute().parent)
    is_in_place = path.absolute() == run.statement
    return is_statement(path) and is_in_place and run.provenance.path.is_file()


def _check_page(path: Path, statement: SignedStatement) -> None:
    """Raise StatementError unless a file is one of a statement's pages, unchanged."""
    digest = hashlib.sha256(read_file(path.parent, path.name)).hexdigest()
    files = statement.files.items()
    digests_of_pages = [signed for name, signed in files if name.endswith(".html")]
    if digest not in digests_of_pages:
        raise StatementError(f"{path.name} is no page of this statement, or was changed")


def _find_absent_without_run(folder: Path, statement: SignedStatement) -> tuple[str, ...]:
    """Check the files of a statement without its run; return the signed files that are not here.

    Raises
    ------
    StatementError
        If a file of the statement is missing or was changed, or a file is no part of it. The
        message names the file.
    """
    prefix = f"{RunFolder(folder).statement.name}/"
    _require_no_link(folder.rglob("*"), folder)
    files_here = {f"{prefix}{ENVELOPE}"}
    not_here = []
    for name, digest in statement.files.items():
        if not name.startswith(prefix):
            not_here.append(name)
            continue
        _require_within(name)
        _require_unchanged(folder / name.removeprefix(prefix), name, digest)
        files_here.add(name)
    _require_known({f"{prefix}{name}" for name in _files_below(folder, folder)}, files_here)
    return tuple(not_here)


def _require_apart(names: Iterable[str]) -> None:
    """Raise StatementError if a reader could take one member's name for another's."""
    try:
        require_apart(names, NAMES)
    except ConfigError as error:
        raise StatementError(str(error)) from error


def _require_within(name: str) -> None:
    """Raise StatementError if a path in the manifest leads out of the run's folder."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise StatementError(f"{name!r:.200} in the manifest lies outside of the run's folder")


def _require_unchanged(path: Path, name: str, digest: str) -> None:
    """Raise StatementError unless a file is there and has the digest in the statement."""
    if not path.is_file():
        raise StatementError(f"{name} is missing")
    if file_hash(path) != digest:
        raise StatementError(f"{name} was changed")


def _require_no_link(paths: Iterable[Path], root: Path) -> None:
    """Raise StatementError for a link: its target could be changed after it was checked."""
    links = sorted(path for path in paths if path.is_symlink())
    if links:
        raise StatementError(f"{links[0].relative_to(root).as_posix()} is a link")


def _require_known(names: Set[str], signed_names: Set[str]) -> None:
    """Raise StatementError if a file is there that the statement does not name."""
    unknown = sorted(names - signed_names)
    if unknown:
        raise StatementError(f"{unknown[0]} is no part of the statement")


def _files_below(folder: Path, root: Path) -> list[str]:
    """Return the paths, below ``root``, of all files in a folder and its subfolders."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.relative_to(root).as_posix() for path in files]


def _find_absent_files(run: RunFolder, statement: SignedStatement) -> tuple[str, ...]:
    """Return the signed files that are not there; raise StatementError if any file is wrong.

    A file is wrong if it was changed, is missing but for the files below, or is not signed. The
    model and the kept updates may be missing: they are large, and need not be handed on.
    """
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
    names_here = _files_below(folder, run.path)
    signed_names = {*statement.files, f"{folder.name}/{ENVELOPE}"}
    _require_known({*names_here, *run.results()}, signed_names)
    return tuple(not_here)


def _read_checked_account(run: RunFolder, manifest: Manifest) -> Account:
    """Return the account; raise StatementError unless it and the pages follow from the records."""
    text = read_file(run.statement, ACCOUNT)
    account = read_account(text)
    records = read_run(run.path, account.names)
    for name, digest in hashes_of(records.provenance).items():
        if getattr(manifest, name) != digest:
            raise StatementError(
                f"{run.provenance.path.name} has another hash of the {name} than the manifest"
            )
    try:
        require_members(records, account.names)
    except ConfigError as error:
        raise StatementError(f"{ACCOUNT}: {error}") from error
    records.salt()  # Raises StatementError if it is not the one that the run committed to.
    require_consistent(records)
    settled_again = settle(
        records,
        account.budget_cents,
        account.pay_by,
        account.ties,
        account.first_round,
        accept_held_out=account.held_out.is_accepted,
    )
    if not is_payable(settled_again.held_out):
        raise StatementError(
            "the held-out set is not to be paid by, and the statement does not say that the "
            "operator accepted that"
        )
    _require_same(json.loads(text), json.loads(account_json(settled_again)), ACCOUNT)
    # Pages are compared only if this version made them: another may word or draw them differently.
    if manifest.made_with == made_with():
        for name, content in contents(account, records, manifest).items():
            if read_file(run.statement, name) == content:
                continue
            if name == ACCOUNT:
                raise StatementError(f"{ACCOUNT} is not written as fedif writes it")
            raise StatementError(f"{name} does not show what {ACCOUNT} and the manifest say")
    return account


def _find_chosen_terms(account: Account, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the terms of pay that the run config leaves open, and the statement chose, in words.

    Raises
    ------
    StatementError
        If a term differs from the run config to which members agreed; the message names it.
    """
    budget = str(config.get("statement.budget", ""))
    shared_out = amount_text(account.budget_cents)
    if budget and parse_budget(budget) != account.budget_cents:
        raise StatementError(
            f"the statement shares out {shared_out or 'nothing'}; members agreed to a run with "
            f"statement.budget = {budget!r}"
        )
    chosen = []
    if shared_out and not budget:
        chosen.append(f"budget {shared_out}")
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
    if account.held_out.is_accepted:
        chosen.append("a held-out set that is not to be paid by")
    return tuple(chosen)


def _require_same_attempts(run: RunFolder, manifest: Manifest) -> None:
    """Raise StatementError if records and manifest are of different attempts at a run.

    This check comes before that of the files. Otherwise the first file that differs would be called
    changed. Records that cannot be read are passed over here: the check of the files names them.
    """
    try:
        recorded = read_attempts(run.provenance.read())
    except (OSError, ConfigError, EvidenceError):
        return
    declared = manifest.declared
    if recorded != declared:
        raise StatementError(
            f"the manifest is of {_in_words(declared)}, and {run.provenance.path.name} is of "
            f"{_in_words(recorded)}"
        )


def _require_declared_run(run: RunFolder, manifest: Manifest) -> None:
    """Raise StatementError if the records are of another run than the attempt that is declared.

    Members sign, and hold receipts, under the id of the run. Records under another id would be
    compared with none of these.
    """
    declared = manifest.declared
    recorded_id = run_id(run)
    if declared is not None and declared.last.run != recorded_id:
        raise StatementError(
            f"{run.provenance.path.name} has the run id {printable(recorded_id[:8])!r}, and the "
            f"attempt that is declared has {declared.last.run[:8]!r}"
        )


def _require_signer_of_heads(run: RunFolder, manifest: Manifest) -> None:
    """Raise StatementError if the last head is signed with another key than the statement.

    Members know the operator by the key of the heads that they hold. Otherwise somebody else could
    make another statement of the same records.
    """
    heads = run.round_heads.read()
    if heads and bytes.fromhex(heads[-1]["key"]) != public_der(manifest.signer):
        raise StatementError(
            f"the statement is signed with the key {fingerprint(manifest.signer)}, and the last "
            f"head in {run.round_heads.path.name} with another one"
        )


def _in_words(attempts: Attempts | None) -> str:
    """Return the last of some attempts in words, for an error message."""
    if attempts is None:
        return "a run whose attempts are not counted"
    name = printable(attempts.name)
    return f"attempt {attempts.number} at run {name!r} (id {attempts.last.run[:8]})"


def _require_same(stated: Any, computed: Any, where: str) -> None:
    """Raise StatementError if two JSON values, at ``where``, differ by more than rounding."""
    if isinstance(stated, dict) and isinstance(computed, dict):
        _require_same_keys(stated, computed, where)
        for key in stated:
            _require_same(stated[key], computed[key], f"{where}: {key}")
    elif isinstance(stated, list) and isinstance(computed, list) and len(stated) == len(computed):
        for i, (stated_item, computed_item) in enumerate(zip(stated, computed, strict=True)):
            _require_same(stated_item, computed_item, f"{where}[{i}]")
    elif not _is_same(stated, computed):
        raise StatementError(f"{where} is {stated!r:.80}, but the records give {computed!r:.80}")


def _require_same_keys(stated: Mapping[str, Any], computed: Mapping[str, Any], where: str) -> None:
    """Raise StatementError, which names a key, if two JSON objects have not the same keys."""
    unknown = stated.keys() - computed.keys()
    if unknown:
        raise StatementError(f"{where} has {min(unknown)!r:.80}, which the records do not give")
    missing = computed.keys() - stated.keys()
    if missing:
        raise StatementError(f"{where} lacks {min(missing)!r:.80}, which the records give")


def _is_same(stated: Any, computed: Any) -> bool:
    """Return whether two JSON values are equal, and two floats equal up to rounding."""
    if type(stated) is type(computed) and stated == computed:
        return True
    if isinstance(stated, float) and isinstance(computed, float):
        return math.isclose(stated, computed, rel_tol=ROUNDING, abs_tol=1e-15)
    return False
