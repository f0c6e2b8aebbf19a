"""Checking what members signed: no update in the records was invented, changed or left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.evidence.keys import VerifyingKey, public_der
from fedif_consortium.evidence.part import run_id
from fedif_consortium.evidence.reply_witness import TRAINED, sent_file
from fedif_consortium.evidence.signed import SignedUpdate, arrays_digest
from fedif_flower.errors import EvidenceError, StatementError
from fedif_flower.foreign import refused_as
from fedif_flower.run.folder import RunFolder, file_of_round, files_of_rounds
from fedif_flower.run.kept_updates import read_step

_ROUNDING = 1e-4  # Of an update's length: a difference is rounded, a shortened one twice.
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
        with refused_as(StatementError, f"{table.path.name}, line {line}"):
            place = int(row["round"]), int(row["client_id"])
            if place in found:
                raise ValueError("it is there twice")
            found[place] = SignedUpdate.read(of_run, row)
    return found


def check_signatures(
    run: RunFolder,
    signed: Signatures,
    names: Sequence[Mapping[int, str]],
    members: Mapping[str, VerifyingKey] | None = None,
) -> tuple[SignedMember, ...]:
    """Check every line of a run's ``signatures.csv``, and that every update has one.

    Parameters
    ----------
    run : RunFolder
        The run.
    signed : mapping
        Its signatures.
    names : sequence of mapping of int to str
        What statement and records call members, by client id.
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
        return next((of[client_id] for of in names if client_id in of), f"client {client_id}")

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
            f"is signed with the key of {holders.get(update.key)}": any(
                update.key != own_keys.get(of.get(client_id, ""), update.key) for of in names
            ),
            f"is the one that it signed for round {asked}": asked != number
            and (asked, client_id) not in late,
            "was signed, and clients.csv has no such reply": not row,
            f"was signed with {update.examples:g} examples, and clients.csv has {told:g}": is_used
            and told != update.examples,
        }
        if found := [words for words, is_so in wrong.items() if is_so]:
            raise StatementError(f"{where} {found[0]}")
    _check_kept_replies(run, signed)
    with_key = {i for of in names for i in of if of[i] in own_keys} | {*(keys if members else ())}
    counts: dict[int, list[bool]] = {}  # Whether each accepted update is signed, by client id.
    for (number, client_id), row in sorted(replies.items()):
        if row["status"] == "accepted":
            is_signed = (number, client_id) in signed
            if client_id in with_key and not is_signed:
                where = f"round {number}: the update of {called(client_id)}"
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


def _read_replies(path: Path) -> tuple[dict[int, dict[str, NDArray[Any]]], list[str]]:
    """Return the replies in a file by client id, and the trained parameters' names."""
    found = defaultdict[int, dict[str, NDArray[Any]]](dict)
    if not path.is_file():
        return found, []
    with np.load(path, allow_pickle=False) as content:
        for key in content.files:
            client_id, slash, name = key.partition("/")
            if slash:
                found[int(client_id)][name] = content[key]
        return found, [str(name) for name in content[TRAINED]]


def _check_kept_replies(run: RunFolder, signed: Signatures) -> None:
    """Check kept replies against what was signed, and kept updates against the replies.

    Raises
    ------
    StatementError
        Naming round and client.
    """
    for number, path in files_of_rounds(run.updates).items():
        step, (replies, trained) = read_step(path), _read_replies(sent_file(run.updates, number))
        for node, used in zip(step.nodes, step.updates.client_updates, strict=True):
            where = f"round {number}: the kept update of client {node.client_id}"
            update = signed.get((number, node.client_id))
            arrays = replies.pop(node.client_id, {})
            if update is None and not arrays:
                continue  # Nobody signed it.
            if update is None or arrays_digest(arrays.items()) != update.sent:
                raise StatementError(f"{where} is not the one that was signed")
            before = step.before
            if update.asked_in != number:  # It came late.
                earlier = file_of_round(run.updates, update.asked_in)
                if not earlier.is_file():
                    continue
                before = read_step(earlier).before
            sent = np.concatenate([np.ravel(arrays[name]) for name in trained])
            change = sent.astype(np.float64) - before.params.double().numpy()
            if not _is_part(used.double().numpy(), change):
                raise StatementError(f"{where}, which was used, is not what it sent")
        if replies:
            raise StatementError(f"round {number}: client {min(replies)}'s reply was not used")


def _is_part(used: NDArray[Any], sent: NDArray[Any]) -> bool:
    """Return whether an update is another one, or a shorter one of its direction."""
    length = float(sent @ sent)
    factor = float(used @ sent) / length if length else 0.0
    bound = _ROUNDING * (float(np.linalg.norm(sent)) + 1e-12)
    return 0 <= factor <= 1 + _ROUNDING and float(np.linalg.norm(used - factor * sent)) <= bound
