"""Checking what members signed: no update in the records was invented, changed or left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fedif_consortium.evidence.kept_replies import check_kept_replies
from fedif_consortium.evidence.keys import VerifyingKey, public_der
from fedif_consortium.evidence.receipt_book import run_id
from fedif_consortium.evidence.signed_update import SignedUpdate
from fedif_flower.errors import EvidenceError, StatementError
from fedif_flower.run.folder import RunFolder

Signatures = Mapping[tuple[int, int], SignedUpdate]  # By round and client id.


class SignedMember(NamedTuple):
    """How many of its accepted updates a member signed; it is called as its key, if it has one."""

    name: str
    signed: int
    accepted: int


def read_signatures(run: RunFolder) -> Signatures:
    """Return what was signed; nothing is checked yet.

    Raises
    ------
    StatementError
        Naming a line that is none, or is there twice.
    """
    found: dict[tuple[int, int], SignedUpdate] = {}
    table, of_run = run.signatures, run_id(run)
    for line, row in enumerate(table.read(), start=2):
        try:
            place = int(row["round"]), int(row["client_id"])
            if place in found:
                raise ValueError("it is there twice")
            found[place] = SignedUpdate.read(of_run, row)
        except (KeyError, ValueError, TypeError) as error:
            raise StatementError(f"{table.path.name}, line {line}: {error!r:.200}") from error
    return found


def check_signatures(
    run: RunFolder,
    signed: Signatures,
    names: Mapping[int, str],
    members: Mapping[str, VerifyingKey] | None = None,
) -> tuple[SignedMember, ...]:
    """Check every line of a run's ``signatures.csv``, and that every update has one.

    Parameters
    ----------
    run : RunFolder
        The run.
    signed : mapping
        Its signatures.
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
    own_keys = {name: public_der(key) for name, key in (members or {}).items()}
    holders = {key: name for name, key in own_keys.items()}
    lines = run.clients.read()
    replies = _used_or_refused(lines)
    late = {(int(row["round"]), int(row["client_id"])) for row in lines if row["status"] == "late"}
    keys: dict[int, bytes] = {}
    received: dict[int, bytes] = {}

    def called(client_id: int) -> str:
        return names.get(client_id) or f"client {client_id}"

    for (number, client_id), update in signed.items():
        where, asked = f"round {number}: the update of {called(client_id)}", update.asked_in
        try:
            update.check()
        except EvidenceError as error:
            raise StatementError(f"{where} is not the one that was signed: {error}") from error
        if received.setdefault(asked, update.received) != update.received:
            raise StatementError(f"round {asked}: members were sent different models")
        row = replies.get((number, client_id), {})
        told = float(row.get("claimed_examples") or row.get("num_examples") or "nan")
        is_used = row.get("status") == "accepted"
        wrong = {
            "is signed with a key that is no member's": members is not None
            and update.key not in holders,
            f"is the one that {called(update.node_id)} signed": update.node_id != client_id,
            "is signed with another key than before": keys.setdefault(client_id, update.key)
            != update.key,
            f"is the one that it signed for round {asked}": asked != number
            and (asked, client_id) not in late,
            "was signed, and clients.csv has no such reply": not row,
            f"was signed with {update.examples:g} examples, and clients.csv has {told:g}": is_used
            and told != update.examples,
        }
        if found := [words for words, is_so in wrong.items() if is_so]:
            raise StatementError(f"{where} {found[0]}")
    check_kept_replies(run, signed)
    counts: dict[int, list[bool]] = {}  # Whether each accepted update is signed, by client id.
    for (number, client_id), row in sorted(replies.items()):
        key, own = own_keys.get(names.get(client_id, "")), keys.get(client_id)
        where = f"round {number}: the update of {called(client_id)}"
        if key and own and own != key:
            raise StatementError(f"{where} is signed with the key of {holders[own]}")
        if row["status"] == "accepted":
            is_signed = (number, client_id) in signed
            if not is_signed and (key or (members and own)):
                raise StatementError(f"{where} is not signed, though this member has a key")
            counts.setdefault(client_id, []).append(is_signed)
    return tuple(
        SignedMember(holders.get(keys.get(i, b"")) or called(i), sum(of_member), len(of_member))
        for i, of_member in sorted(counts.items())
        if signed or members
    )


def _used_or_refused(lines: Iterable[dict[str, str]]) -> dict[tuple[int, int], dict[str, str]]:
    """Return the lines of ``clients.csv`` of replies that came in time, by round and client id."""
    found: dict[tuple[int, int], dict[str, str]] = {}
    for row in lines:
        place = int(row["round"]), int(row["client_id"])
        # A second reply of a node is refused, and is no other line's.
        if row["status"] == "accepted" or (row["status"] == "refused" and place not in found):
            found[place] = row
    return found
