"""What others check of a statement: signature, hashes and sums.

The first thing that is wrong is named.
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
from fedif_consortium.evidence.check_receipts import check_receipts
from fedif_consortium.evidence.check_signatures import (
    SignedMember,
    check_signatures,
    read_signatures,
)
from fedif_consortium.evidence.held_receipts import HeldReceipts
from fedif_consortium.evidence.keys import VerifyingKey, fingerprint
from fedif_consortium.evidence.names import require_apart
from fedif_consortium.statement.account import Account, settle
from fedif_consortium.statement.agreed import check_run_config
from fedif_consortium.statement.bundle import (
    NAMES,
    account_json,
    amount_text,
    contents,
    parse_budget,
    read_account,
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
    """What was found right.

    Attributes
    ----------
    signed : ReadStatement
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
        What the run config does not say of the pay: the operator chose it with the statement.
    """

    signed: ReadStatement
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
        return replace(verified, not_here=_check_alone(path, signed.statement))
    with refused_as(StatementError, "the records cannot be read"):
        return _verify_run(run, signed, members, receipts)


def _verify_run(
    run: RunFolder,
    signed: ReadStatement,
    members: Mapping[str, VerifyingKey] | None,
    receipts: Sequence[Path],
) -> Verified:
    """Check a statement against the records of its run, see :func:`verify`."""
    manifest = signed.statement.predicate
    _require_same_attempts(run, manifest)
    not_here = _check_files(run, signed.statement)
    agreed = check_run_config(run)
    account = _check_account(run, manifest)
    # What the statement calls members, and what the operator registered them as.
    names = (account.names, read_names(run.names.path))
    for names_of_members in names:
        _require_apart(names_of_members.values())
    # Pages call members so who have no name.
    _require_apart([*account.names.values(), *(member.name for member in account.members)])
    signatures = read_signatures(run)
    signing_members = check_signatures(run, signatures, names, members)
    held, redone = check_receipts(
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
        receipts=held,
        redone=redone,
        chosen=_check_terms(account, agreed),
    )


def _is_within_its_run(path: Path) -> bool:
    """Return whether a statement's folder lies where its run left it."""
    run = RunFolder(path.absolute().parent)
    is_in_place = path.absolute() == run.statement
    return is_statement(path) and is_in_place and run.provenance.path.is_file()


def _check_page(path: Path, statement: SignedStatement) -> None:
    """Raise StatementError unless a file is one of a statement's pages, as it was signed."""
    digest = hashlib.sha256(read_file(path.parent, path.name)).hexdigest()
    files = statement.files.items()
    digests_of_pages = [signed for name, signed in files if name.endswith(".html")]
    if digest not in digests_of_pages:
        raise StatementError(f"{path.name} is no page of this statement, or was changed")


def _check_alone(folder: Path, statement: SignedStatement) -> tuple[str, ...]:
    """Check the files of a statement without its run; return what is not here.

    Raises
    ------
    StatementError
        Naming what is missing, was changed, or is no part of it.
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
    """Raise StatementError where a member's name reads as another's."""
    try:
        require_apart(names, NAMES)
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
    links = sorted(path for path in paths if path.is_symlink())
    if links:
        raise StatementError(f"{links[0].relative_to(root).as_posix()} is a link")


def _require_known(names: Set[str], signed_names: Set[str]) -> None:
    """Raise StatementError for a file that the statement does not name."""
    unknown = sorted(names - signed_names)
    if unknown:
        raise StatementError(f"{unknown[0]} is no part of the statement")


def _files_below(folder: Path, root: Path) -> list[str]:
    """Return the files in a folder and the folders in it, by their paths below ``root``."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.relative_to(root).as_posix() for path in files]


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
    names_here = _files_below(folder, run.path)
    signed_names = {*statement.files, f"{folder.name}/{ENVELOPE}"}
    _require_known({*names_here, *run.results()}, signed_names)
    return tuple(not_here)


def _check_account(run: RunFolder, manifest: Manifest) -> Account:
    """Return the account, or raise StatementError: it, or a page, is not of the records."""
    text = read_file(run.statement, ACCOUNT)
    account = read_account(text)
    records = read_run(run.path, account.names)
    for name, digest in hashes_of(records.provenance).items():
        if getattr(manifest, name) != digest:
            raise StatementError(f"{run.provenance.path.name} has another hash of the {name}")
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
    """Raise StatementError where records and manifest are of different attempts at a run.

    It comes first: else the first file that differs would be called changed. Records that cannot
    be read are named with the other files.
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


def _in_words(attempts: Attempts | None) -> str:
    if attempts is None:
        return "a run whose attempts are not counted"
    name = printable(attempts.name)
    return f"attempt {attempts.number} at run {name!r} (id {attempts.last.run[:8]})"


def _require_same(stated: Any, computed: Any, where: str) -> None:
    """Raise StatementError where two JSON values differ by more than rounding."""
    if isinstance(stated, dict) and isinstance(computed, dict) and stated.keys() == computed.keys():
        for key in stated:
            _require_same(stated[key], computed[key], f"{where}: {key}")
    elif isinstance(stated, list) and isinstance(computed, list) and len(stated) == len(computed):
        for i, (stated_item, computed_item) in enumerate(zip(stated, computed, strict=True)):
            _require_same(stated_item, computed_item, f"{where}[{i}]")
    elif not _is_same(stated, computed):
        raise StatementError(f"{where} is {stated!r:.80}, but the records give {computed!r:.80}")


def _is_same(stated: Any, computed: Any) -> bool:
    """Return whether two JSON values are the same, floats up to rounding."""
    if type(stated) is type(computed) and stated == computed:
        return True
    if isinstance(stated, float) and isinstance(computed, float):
        return math.isclose(stated, computed, rel_tol=ROUNDING, abs_tol=1e-15)
    return False
