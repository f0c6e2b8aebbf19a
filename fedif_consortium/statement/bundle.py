"""A statement's files: made from a run's folder, hashed, signed, and put there whole."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedif_consortium.evidence.cells import first_of
from fedif_consortium.evidence.check_receipts import last_head
from fedif_consortium.evidence.keys import SigningKey, public_der, public_of
from fedif_consortium.statement.account import Account, MemberAccount, settle
from fedif_consortium.statement.manifest import (
    ACCOUNT,
    ENVELOPE,
    SALT,
    TABLE,
    Manifest,
    file_hash,
    hashes_of,
    statement_of,
)
from fedif_consortium.statement.pages import made_with, page_names, render
from fedif_consortium.statement.records import RunRecords, read_run
from fedif_consortium.statement.settings import PayBy, Ties
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.foreign import parse_json, refused_as
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import csv_text
from fedif_flower.run.secret_validation import COMMITMENT, NONCE, default_secret_path, salt_of
from fedif_flower.storage import make_folder, set_aside, temporary_sibling, writing

_CONTACT = re.compile(r"[^\x00-\x1f\x7f]{0,200}")
_BUDGET = re.compile(r"[0-9]{1,12}(\.[0-9]{1,2})?")


def parse_budget(text: str) -> int:
    """Return an amount such as ``1000`` or ``1000.50`` in cents.

    Raises
    ------
    ConfigError
        If it is none, negative, or finer than a cent.
    """
    if not _BUDGET.fullmatch(text):
        raise ConfigError(f"budget = {text!r}; allowed: an amount such as 1000 or 1000.50")
    whole, _, cents = text.partition(".")
    return 100 * int(whole) + int(cents.ljust(2, "0"))


def make_statement(
    run_dir: Path,
    key: SigningKey,
    *,
    budget_cents: int | None = None,
    names: Mapping[int, str] | None = None,
    from_round: int = 1,
    contact: str = "",
    again: bool = False,
    pay_by: PayBy = "sum",
    ties: Ties = "apart",
) -> Path:
    """Write ``statement/`` in a run's folder; return it.

    Parameters
    ----------
    run_dir : Path
        A complete run with attribution.
    key : SigningKey
        The operator's: signs it.
    budget_cents : int, optional
        What is shared out.
    names : mapping of int to str, optional
        Members' names by client id; default: those given at registration.
    from_round : int
        The rounds before this one count for nothing.
    contact : str
        Whom members may ask, for the pages: 200 printable characters at most.
    again : bool
        Where there is a statement already, keep it as ``statement-1`` (``-2`` ...). Members may
        have been sent it, and their pages name its manifest.

    Raises
    ------
    ConfigError, StorageError
        If the run has no such records or round, or has a statement already, or the folder cannot
        be written.
    """
    if not _CONTACT.fullmatch(contact):
        raise ConfigError(f"contact = {contact[:80]!r}; allowed: at most 200 printable characters")
    if not again and _is_statement(earlier := RunFolder(run_dir).statement):
        raise ConfigError(
            f"{earlier} is there, and members may have been sent it; --again makes another "
            "and keeps it"
        )
    with refused_as(ConfigError, f"{run_dir}: no statement can be made of its records"):
        records = read_run(run_dir, names)
        counted = records.since(from_round)
        return _made(records, counted, settle(counted, budget_cents, pay_by, ties), key, contact)


def _made(
    records: RunRecords, counted: RunRecords, account: Account, key: SigningKey, contact: str
) -> Path:
    manifest = Manifest(
        run=records.name,
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        contact=contact,
        public_key=base64.b64encode(public_der(public_of(key))).decode(),
        head=last_head(records.folder),
        **hashes_of(records.provenance),
        made_with=made_with(),
        files={},
    )
    written = {
        ACCOUNT: account_json(account, counted).encode(),
        TABLE: account_csv(account).encode(),
        **render(account, counted, manifest),
        **opened_salt(records),
    }
    folder = records.folder.statement
    digests = {f"{folder.name}/{n}": hashlib.sha256(c).hexdigest() for n, c in written.items()}
    of_run = {name: file_hash(folder.parent / name) for name in records.folder.results()}
    model = records.folder.model
    if model.name not in of_run:
        raise ConfigError(f"{model} is not there: a statement is about the model of its run")
    signed = statement_of(
        *(model.name, of_run.pop(model.name)),
        manifest.model_copy(update={"files": of_run | digests}),
    )
    written[ENVELOPE] = signed.envelope().signed_by(key).to_bytes()
    _put_folder(folder, written)
    return folder


def opened_salt(records: RunRecords) -> dict[str, bytes]:
    """Return the salt of a run's secret data as a file, if there are any.

    Raises
    ------
    ConfigError
        If the server's secret is not the one that the run had.
    """
    if COMMITMENT not in records.provenance:
        return {}
    salt = salt_of(str(records.provenance[NONCE]))
    if salt.commitment != records.provenance[COMMITMENT]:
        raise ConfigError(
            f"secret = {str(default_secret_path())!r} is not the one that the run began with"
        )
    return {SALT: (salt.value + "\n").encode()}


def account_json(account: Account, records: RunRecords) -> str:
    """Return an account as a JSON object, from which :func:`read_account` makes it again."""
    names = page_names(records)
    content = asdict(account)
    for member in content["members"]:
        member["page"] = names[member["client_id"]]
    content["names"] = {str(key): name for key, name in records.names.items()}
    return json.dumps(content, indent=2) + "\n"


def read_account(text: str | bytes) -> tuple[Account, dict[int, str]]:
    """Return an account and the names that it was made with.

    Raises
    ------
    ValueError, TypeError, KeyError
        If it is none.
    """
    content: dict[str, Any] = parse_json(text)
    names = {int(key): name for key, name in content["names"].items()}
    try:
        return TypeAdapter(Account).validate_python(content), names
    except ValidationError as error:
        raise ValueError(first_of(error)) from error


def account_csv(account: Account) -> str:
    """Return the members' accounts as a table."""
    intervals = ("intervals", "draw_intervals", "share_intervals")
    elsewhere = (*intervals, "places", "by_class", "refusals", "verdict")
    columns = [f.name for f in fields(MemberAccount) if f.name not in elsewhere]
    columns[columns.index("cents")] = "amount"
    ends = [f"{of}{end}" for of in ("", "draw_", "share_") for end in ("low", "high")]
    rows: list[list[object]] = [[*columns, *ends, "verdict", "reason"]]
    for member in account.members:
        values = vars(member) | {"amount": "" if member.cents is None else amount(member.cents)}
        last = [of[-1] if of else None for of in (vars(member)[name] for name in intervals)]
        between = [end for own in last for end in ((own.low, own.high) if own else (None, None))]
        verdict = member.verdict
        rows.append([*(values[c] for c in columns), *between, verdict.level, verdict.reason])
    return csv_text(rows)


def amount(cents: int) -> str:
    """Return cents as an amount: ``1234.50``."""
    return f"{cents // 100}.{cents % 100:02}"


def _is_statement(folder: Path) -> bool:
    return (folder / ENVELOPE).is_file()


def _put_folder(folder: Path, content: Mapping[str, bytes]) -> None:
    """Put a folder with these files there; an earlier statement is kept under another name."""
    if folder.exists() and not _is_statement(folder):
        raise StorageError(f"{folder} is there, and is no statement: move it away")
    fresh = temporary_sibling(folder)
    try:
        for name, data in content.items():
            make_folder((fresh / name).parent)
            with writing(fresh / name):
                (fresh / name).write_bytes(data)
        with writing(folder):
            set_aside(folder)
            fresh.replace(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
