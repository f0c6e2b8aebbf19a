"""Making a statement: its files are computed from a run's records, hashed, signed and written."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import TypeAdapter, ValidationError

from fedif_consortium.evidence.attempts import Attempt, Attempts, read_attempts
from fedif_consortium.evidence.check_receipts import last_head
from fedif_consortium.evidence.keys import (
    SigningKey,
    content_fingerprint,
    load_or_make_key,
    public_der,
)
from fedif_consortium.evidence.names import require_apart, require_names
from fedif_consortium.evidence.signed import first_error
from fedif_consortium.statement.account import Account, settle
from fedif_consortium.statement.consistency import require_consistent
from fedif_consortium.statement.from_round import records_from
from fedif_consortium.statement.held_out import require_payable
from fedif_consortium.statement.luck import Between
from fedif_consortium.statement.manifest import (
    ACCOUNT,
    ENVELOPE,
    SALT,
    TABLE,
    Agreed,
    Manifest,
    file_hash,
    hashes_of,
    put_folder,
    read_signed,
    statement_of,
)
from fedif_consortium.statement.member_account import Verdict
from fedif_consortium.statement.member_facts import labels
from fedif_consortium.statement.pages import made_with, render
from fedif_consortium.statement.records import RunRecords, read_run
from fedif_consortium.statement.settings import AMOUNT, PayBy, StatementSettings, Ties
from fedif_consortium.statement.undelivered import queue_pages
from fedif_flower.errors import ConfigError, StatementError, require
from fedif_flower.foreign import parse_json, refused_as
from fedif_flower.messages.text import printable
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import csv_text
from fedif_flower.words import listed

NAMES = "the members' names:"


def require_members(records: RunRecords, names: Mapping[int, str]) -> None:
    """Raise ConfigError if ``names`` has a client id that the run does not know."""
    strangers = sorted(names.keys() - records.known_ids())
    if strangers:
        raise ConfigError(
            f"names: client_id {listed(strangers)}: no such member in this run; allowed: ids of "
            f"its members, like {min(records.members)}"
        )


def parse_budget(text: str) -> int:
    """Return an amount such as ``1000`` or ``1000.50`` in cents.

    Raises
    ------
    ConfigError
        If ``text`` is no amount, is negative, or is finer than a cent.
    """
    is_amount = bool(text and re.fullmatch(AMOUNT, text))
    require(is_amount, "budget", text, "an amount such as 1000 or 1000.50")
    whole, _, cents = text.partition(".")
    return 100 * int(whole) + int(cents.ljust(2, "0"))


def load_signer(run_dir: Path, path: Path) -> Ed25519PrivateKey:
    """Return the key that signs a run's statement: the key by which members know the operator.

    Members know it if they got receipts or an earlier statement of this run, which are signed.

    Parameters
    ----------
    run_dir : Path
        The run's folder.
    path : Path
        The key's file. It is made if it is missing and members know no key yet.

    Raises
    ------
    ConfigError
        If members know another key; the message has its fingerprint.
    StatementError
        If the statement that is there was changed.
    StorageError
        If the key cannot be made.
    """
    known_keys = _keys_of_operator(run_dir)
    if known_keys and not path.expanduser().exists():
        signed_thing, known_key = next(iter(known_keys.items()))
        raise ConfigError(
            f"{run_dir}: {signed_thing} is signed with the key {content_fingerprint(known_key)}, "
            f"and key = {str(path)!r} is missing: name that key's file with --key"
        )
    signer = load_or_make_key(path)
    this_key = public_der(signer.public_key())
    for signed_thing, known_key in known_keys.items():
        if known_key != this_key:
            raise ConfigError(
                f"{run_dir}: {signed_thing} is signed with the key "
                f"{content_fingerprint(known_key)}, not with {content_fingerprint(this_key)}: "
                "name the first key's file with --key"
            )
    return signer


def _keys_of_operator(run_dir: Path) -> dict[str, bytes]:
    """Return the public keys by which members know a run's operator, as DER.

    They are keyed by what they signed, in words for an error message.

    Raises
    ------
    StatementError
        If the statement that is there was changed.
    """
    run = RunFolder(run_dir)
    keys = {}
    if (run.statement / ENVELOPE).is_file():
        earlier = read_signed(run.statement).statement.predicate
        keys["its earlier statement"] = public_der(earlier.signer)
    for head in run.round_heads.read():
        keys["the chain of its receipts"] = bytes.fromhex(head["key"])
    return keys


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
    accept_held_out: bool = False,
) -> Path:
    """Write a run's statement into ``statement/`` in the run's folder, and return that folder.

    A run of real nodes counts its attempts. The pages of its members are then queued, and the next
    run with the same ``output-dir`` delivers them.

    Parameters
    ----------
    run_dir : Path
        The folder of a complete run with attribution.
    key : SigningKey
        The operator's key, which signs the statement.
    budget_cents : int, optional
        The amount to share out, in cents, >= 0; default: none.
    names : mapping of int to str, optional
        Members' names by client id; default: those given at registration.
    from_round : int
        The first round that counts; earlier rounds count for nobody.
    contact : str
        Whom members may ask, for the pages: 200 printable characters at most.
    again : bool
        Make a statement even if there is one already. The earlier one is kept as ``statement-1``
        (``-2`` ...), since members may have got it, and their pages name its manifest.
    pay_by : {"sum", "draw"}
        Whether shares are computed from sums of credits, or from means per draw.
    ties : {"apart", "alike"}
        With ``"alike"``, members that are not told apart are paid alike.
    accept_held_out : bool
        Pay by the held-out set even if it is not to be paid by (see
        :mod:`~fedif_consortium.statement.held_out`); the statement then says so.

    Raises
    ------
    ConfigError
        If the run is not complete or not attributed, has a statement already, or an argument does
        not fit the run.
    StatementError
        If the records contradict each other.
    StorageError
        If the statement cannot be written.
    """
    StatementSettings(contact=contact)  # Raises ConfigError for a contact that is not allowed.
    if budget_cents is not None:
        require(budget_cents >= 0, "budget_cents", budget_cents, "0 or more")
    folder = RunFolder(run_dir).statement
    if folder.exists() and not again:
        raise ConfigError(
            f"{folder} is there, and members may have been sent it; --again makes another "
            "and keeps it"
        )
    with refused_as(ConfigError, f"{run_dir}: no statement can be made of its records"):
        records = read_run(run_dir, names)
        require_members(records, names or {})
        require_names(records.names.values(), NAMES)
        require_apart([*records.names.values(), *labels(records).values()], NAMES)
        require_consistent(records)
        account = settle(
            records, budget_cents, pay_by, ties, from_round, accept_held_out=accept_held_out
        )
        require_payable(account.held_out)
        put_folder(folder, _signed_files(account, records, key, contact))
        if read_attempts(records.provenance) is not None:
            queue_pages(records.folder)
    return folder


def make_by_terms(
    run_dir: Path,
    key: SigningKey,
    terms: StatementSettings,
    *,
    names: Mapping[int, str] | None = None,
    from_round: int = 1,
    again: bool = False,
    accept_held_out: bool = False,
) -> Path:
    """Write a run's statement by the terms in settings; terms that are empty have their defaults.

    The other parameters, and the errors, are those of :func:`make_statement`.
    """
    budget_cents = None
    if terms.budget:
        budget_cents = parse_budget(terms.budget)
    return make_statement(
        run_dir,
        key,
        budget_cents=budget_cents,
        names=names,
        from_round=from_round,
        contact=terms.contact,
        again=again,
        pay_by=terms.pay_by or "sum",
        ties=terms.ties or "apart",
        accept_held_out=accept_held_out,
    )


def statement_terms(run_dir: Path) -> StatementSettings:
    """Return the terms of a statement in a run's settings, to which its members agreed.

    Raises
    ------
    ConfigError
        If the settings cannot be read.
    """
    with refused_as(ConfigError, f"{run_dir}: its settings cannot be read"):
        settings = RunFolder(run_dir).settings()
        keys = settings.keys() & set(StatementSettings.key_names())
        return StatementSettings(**{key: settings[key] for key in keys})


def _signed_files(
    account: Account, records: RunRecords, key: SigningKey, contact: str
) -> dict[str, bytes]:
    """Return the files of a statement's folder by path, with the signed manifest among them.

    The manifest has the hash of each of these files, and of each of the run's results.
    """
    run = records.folder
    has_model = run.model.is_file() and run.model.stat().st_size > 0
    if not has_model:
        raise ConfigError(f"{run.model} holds no model: a statement is about the model of its run")
    attempts = read_attempts(records.provenance)
    all_attempts: list[Attempt] = []
    if attempts is not None:
        all_attempts = list(attempts.attempts)
    manifest = Manifest(
        run=run.path.name,
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        contact=contact,
        public_key=base64.b64encode(public_der(key.public_key())).decode(),
        agreed=agreed_in_last(attempts),
        attempts=all_attempts,
        head=last_head(run),
        **hashes_of(records.provenance),
        made_with=made_with(),
        files={},
    )
    files = contents(account, records, manifest)
    salt = records.salt()
    if salt:
        files[SALT] = f"{salt}\n".encode()
    digests = {name: file_hash(run.path / name) for name in run.results()}
    for name, content in files.items():
        digests[f"{run.statement.name}/{name}"] = hashlib.sha256(content).hexdigest()
    # The model is the subject of the statement; the manifest has the hashes of all other files.
    model_digest = digests.pop(run.model.name)
    manifest = manifest.model_copy(update={"files": digests})
    statement = statement_of(run.model.name, model_digest, manifest)
    files[ENVELOPE] = statement.envelope().signed_by(key).to_bytes()
    return files


def agreed_in_last(attempts: Attempts | None) -> Agreed | None:
    """Return what members agreed to in a run's last attempt, for a manifest."""
    if attempts is None:
        return None
    return Agreed(name=attempts.name, attempt=attempts.number, config=attempts.last.config)


def contents(account: Account, records: RunRecords, manifest: Manifest) -> dict[str, bytes]:
    """Return the files that follow from a run's account, by path below the statement's folder.

    They are the account as JSON and as a table, and the pages. ``records`` are those of the whole
    run.
    """
    texts = {
        ACCOUNT: account_json(account),
        TABLE: account_csv(account),
        **render(account, records_from(records, account.first_round), manifest),
    }
    return {name: text.encode() for name, text in texts.items()}


def account_json(account: Account) -> str:
    """Return an account as JSON, which :func:`read_account` reads."""
    return json.dumps(asdict(account), indent=2) + "\n"


def read_account(text: str | bytes) -> Account:
    """Return the account in a JSON text.

    Raises
    ------
    StatementError
        If the text is no account, or the account has a name that no member can have.
    """
    try:
        account = TypeAdapter(Account).validate_python(parse_json(text))
    except ValidationError as error:
        wrong = error.errors()[0]
        if wrong["type"] == "missing":
            raise StatementError(
                f"{ACCOUNT} has no {wrong['loc'][-1]!r}: another version of fedif-flower made it; "
                "verify it with that one, or let the operator make it again"
            ) from error
        raise StatementError(f"{ACCOUNT}: {printable(first_error(error))}") from error
    except ValueError as error:
        raise StatementError(f"{ACCOUNT}: {printable(error)}") from error
    if account.budget_cents is not None and account.budget_cents < 0:
        raise StatementError(
            f"{ACCOUNT}: budget_cents = {account.budget_cents}; allowed: 0 or more"
        )
    try:
        require_names(account.names.values(), NAMES)
    except ConfigError as error:
        raise StatementError(f"{ACCOUNT}: {error}") from error
    return account


def account_csv(account: Account) -> str:
    """Return the members' accounts as a CSV table, one line for each member."""
    rows = []
    for member in account.members:
        # A cell holds one value, so tuples are left out; the ends of intervals have cells below.
        values = vars(member)
        row = {k: v for k, v in values.items() if not isinstance(v, tuple | Verdict)}
        row["amount"] = amount_text(member.cents)
        row["low"], row["high"] = _ends(member.intervals)
        row["draw_low"], row["draw_high"] = _ends(member.draw_intervals)
        row["share_low"], row["share_high"] = _ends(member.share_intervals)
        row["share_noise_low"], row["share_noise_high"] = member.noise_shares or (None, None)
        row["share_mix_low"], row["share_mix_high"] = member.mix_interval or (None, None)
        row["verdict"] = member.verdict.level
        row["reason"] = member.verdict.reason
        rows.append(row)
    return csv_text([rows[0], *(row.values() for row in rows)])


def amount_text(cents: int | None) -> str:
    """Return an amount of cents as tables write it, such as ``1000.50``; empty for ``None``."""
    if cents is None:
        return ""
    return f"{cents // 100}.{cents % 100:02}"


def _ends(intervals: Sequence[Between]) -> tuple[float | None, float | None]:
    """Return the ends of the last interval, which is about all kinds of luck; ``None`` without."""
    if not intervals:
        return None, None
    return intervals[-1].low, intervals[-1].high
