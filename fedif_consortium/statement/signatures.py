"""Checking what members signed: no update in the records was invented, changed or left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedif_consortium.evidence.keys import VerifyingKey, public_der
from fedif_consortium.evidence.signed_update import SignedUpdate
from fedif_consortium.statement.kept_replies import check_kept_replies
from fedif_flower.errors import EvidenceError, StatementError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.provenance import RUN_ID

_By = tuple[int, int]  # Round and client id.


@dataclass(frozen=True)
class SignedMember:
    """What a member signed in a run.

    Attributes
    ----------
    name : str
        What it is called; of its key's file, where keys are given.
    signed, accepted : int
        Its accepted updates that it signed, and all of them.
    """

    name: str
    signed: int
    accepted: int


def check_signatures(
    run: RunFolder, names: Mapping[int, str], members: Mapping[str, VerifyingKey] | None = None
) -> tuple[SignedMember, ...]:
    """Check every line of a run's ``signatures.csv``, and that every update has one.

    Parameters
    ----------
    run : RunFolder
        The run.
    names : mapping of int to str
        What the records call members, by client id.
    members : mapping of str to public key, optional
        Members' keys by name, from elsewhere than the run. Without them, signatures are checked by
        the keys that the records name.

    Raises
    ------
    StatementError
        Naming round and member of an update that was invented, changed or left out.
    """
    known = None if members is None else {public_der(key): n for n, key in members.items()}
    lines = run.clients.read()
    accepted = _accepted(lines)
    late = {(int(row["round"]), int(row["client_id"])) for row in lines if row["status"] == "late"}
    signed = read_signatures(run)
    keys: dict[int, bytes] = {}
    received: dict[int, bytes] = {}
    for (number, client_id), update in signed.items():
        who = _called(client_id, names)
        where = f"round {number}: the update of {who}"
        if known is not None and update.key not in known:
            raise StatementError(f"{where} is signed with a key that is no member's")
        try:
            update.check()
        except EvidenceError as error:
            raise StatementError(f"{where} is not the one that was signed: {error}") from error
        if update.statement.node != client_id:
            node = _called(update.statement.node, names)
            raise StatementError(f"{where} is the one that {node} signed")
        if keys.setdefault(client_id, update.key) != update.key:
            raise StatementError(f"{where} is signed with another key than before")
        asked, model = update.statement.server_round, update.statement.received
        if received.setdefault(asked, model) != model:
            raise StatementError(f"round {asked}: members were sent different models")
        if asked != number and (asked, client_id) not in late:
            raise StatementError(f"{where} is the one that it signed for round {asked}")
        if (number, client_id) not in accepted:
            raise StatementError(f"{where} was signed, and clients.csv has no such reply")
        _check_examples(where, update, accepted[number, client_id])
    check_kept_replies(run, signed)
    by_name = {name: key for key, name in (known or {}).items()}
    used: dict[int, list[bool]] = {}  # Whether each accepted update is signed, by client id.
    for (number, client_id), row in sorted(accepted.items()):
        key, own = by_name.get(names.get(client_id, "")), keys.get(client_id)
        where = f"round {number}: the update of {_called(client_id, names)}"
        if known is not None and key is not None and own is not None and own != key:
            raise StatementError(f"{where} is signed with the key of {known[own]}")
        if row["status"] != "accepted":
            continue
        is_signed = (number, client_id) in signed
        if known is not None and not is_signed and (key is not None or own is not None):
            raise StatementError(f"{where} is not signed, though this member has a key")
        used.setdefault(client_id, []).append(is_signed)
    return tuple(
        SignedMember(
            (known or {}).get(keys.get(client_id, b"")) or _called(client_id, names),
            sum(of_member),
            len(of_member),
        )
        for client_id, of_member in sorted(used.items())
        if signed or known
    )


def read_signatures(run: RunFolder) -> dict[_By, SignedUpdate]:
    """Return what was signed, by round and client id; nothing is checked yet.

    Raises
    ------
    StatementError
        Naming a line that is none, or is there twice.
    """
    table = run.signatures
    if not table.path.is_file():
        return {}
    found: dict[_By, SignedUpdate] = {}
    run_id = str(run.provenance.read().get(RUN_ID, ""))
    for line, row in enumerate(table.read(), start=2):
        try:
            place = int(row["round"]), int(row["client_id"])
            if place in found:
                raise ValueError("it is there twice")
            found[place] = SignedUpdate.read(run_id, row)
        except (KeyError, ValueError, TypeError) as error:
            raise StatementError(f"{table.path.name}, line {line}: {error!r:.200}") from error
    return found


def _accepted(lines: Iterable[dict[str, str]]) -> dict[_By, dict[str, str]]:
    """Return the lines of ``clients.csv`` whose replies were used or refused, by who."""
    found: dict[_By, dict[str, str]] = {}
    for row in lines:
        place = int(row["round"]), int(row["client_id"])
        # A second reply of a node is refused, and is no other line's.
        if row["status"] == "accepted" or (row["status"] == "refused" and place not in found):
            found[place] = row
    return found


def _check_examples(where: str, update: SignedUpdate, row: Mapping[str, str]) -> None:
    """Raise StatementError if the records have another number of examples than was signed."""
    told = row.get("claimed_examples") or row["num_examples"]
    if row["status"] == "accepted" and float(told) != update.statement.examples:
        raise StatementError(
            f"{where} was signed with {update.statement.examples:g} examples, and clients.csv has "
            f"{float(told):g}"
        )


def _called(client_id: int, names: Mapping[int, str]) -> str:
    return names.get(client_id) or f"client {client_id}"
