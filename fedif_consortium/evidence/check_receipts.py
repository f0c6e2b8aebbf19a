"""Checking the chain of a run's records, and members' receipts against it and each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedif_consortium.evidence.attempts import Attempts
from fedif_consortium.evidence.bound_rows import rows_by_round, state_of
from fedif_consortium.evidence.check_signatures import Signatures
from fedif_consortium.evidence.held_receipts import HeldReceipts, read_held
from fedif_consortium.evidence.part import read_chain, run_id
from fedif_consortium.evidence.receipts import (
    RoundChain,
    ToldRound,
    read_leaf,
    round_leaves,
    why_it_cannot_follow,
)
from fedif_consortium.evidence.redone_rounds import counted_rounds, not_told, redone_rounds
from fedif_flower.errors import EvidenceError, StatementError
from fedif_flower.messages.text import enumerated, printable
from fedif_flower.run.folder import RunFolder

Names = Sequence[Mapping[int, str]]


class CheckedReceipts(NamedTuple):
    """What members kept, and the rounds that were done again after the run was resumed."""

    held: tuple[HeldReceipts, ...]
    redone: tuple[int, ...]


def last_head(run: RunFolder) -> str:
    """Return size and root of the last head, for a manifest; empty: there are no receipts."""
    return _end(read_chain(run, run_id(run)))


def _end(chain: RoundChain) -> str:
    last = chain.rounds[-1:]
    return f"{last[0].size} {last[0].root.hex()}" if last else ""


def check_receipts(
    run: RunFolder,
    told: str,
    signed: Signatures,
    folders: Sequence[Path],
    *,
    declared: Attempts | None = None,
    names: Names = (),
    trusted: bool = False,
) -> CheckedReceipts:
    """Check the chain of a run, and compare members' receipts with it and with each other.

    Parameters
    ----------
    run : RunFolder
        The run.
    told : str
        The last head, as the manifest has it.
    signed : mapping
        What members signed.
    folders : sequence of Path
        Members' ``receipts-dir``.
    declared : Attempts, optional
        The attempts at the run, as the manifest has them.
    names : sequence of mapping of int to str
        What statement and records call members, by client id.
    trusted : bool
        Whether signatures were checked with keys from elsewhere than the run.

    Raises
    ------
    ConfigError
        If a folder holds nothing of this run.
    StatementError
        Naming the first round that is not as members were told, or was done again without their
        knowledge; members who were told different things; another attempt than the declared ones.
    """
    chain = read_chain(run, run_id(run))
    if _end(chain) != told:
        raise StatementError(f"{run.round_heads.path.name} is not what the manifest says")
    _check_order(chain)
    if chain.rounds:
        _check_leaves(run, chain, signed)
        _check_rows(run, chain)
    name = "" if declared is None else declared.name
    held = [read_held(folder, run_id(run), name) for folder in folders]
    _compare(held)
    for member in held:  # A line says more than a head does.
        _check_lines(member, chain, signed)
    for member in held:
        _check_heads(member, chain)
        _check_end(member, chain)
        _check_attempts(member, declared)
    for (number, client_id), update in sorted(signed.items()):
        if update.head and update.head not in chain.sizes:
            raise StatementError(
                f"before round {number}, history was rewritten: client {client_id} signed that it "
                "was told of other rounds than the records have"
            )
    redone = redone_rounds(chain)
    missing = not_told(redone, chain, held, signed if trusted else {})
    if missing:
        raise StatementError(_never_told(missing, names))
    _check_signed_attempts(chain, signed, names)
    return CheckedReceipts(tuple(held), tuple(again.number for again in redone))


def _check_order(chain: RoundChain) -> None:
    """Raise StatementError unless each head is signed and can stand behind the one before."""
    before: ToldRound | None = None
    for one in chain.rounds:
        try:
            one.check()
        except EvidenceError as error:
            raise StatementError(f"round {one.number} of receipts.csv: {error}") from error
        if reason := why_it_cannot_follow(before, one):
            raise StatementError(f"receipts.csv: history was rewritten: {reason}")
        before = one


def _check_leaves(run: RunFolder, chain: RoundChain, signed: Signatures) -> None:
    """Raise StatementError unless each round's last leaves say what records and members say."""
    lines, attributed = _by_round(run.clients.read()), _by_round(run.attribution.read())
    told = {number: list(one.own.values()) for number, one in counted_rounds(chain).items()}
    for number in sorted({*told, *(int(row["round"]) for row in run.attributed_rounds.read())}):
        updates = defaultdict[int, str](str)  # By the leaf's place.
        for place, leaf in enumerate(map(read_leaf, told.get(number, ()))):
            if not leaf["client_id"]:  # Nobody was asked.
                continue
            own = signed.get((number, int(leaf["client_id"])))
            updates[place] = own.sent.hex() if own and leaf["update"] else leaf["update"]
        members = [
            (line["client_id"], updates[place], line["weight"], line["status"])
            for place, line in enumerate(lines[number])
        ]
        due = {
            line["client_id"]: (line["contribution"], line["credited"])
            for line in attributed[number]
        }
        if round_leaves(number, members, due) != told.get(number, []):
            raise StatementError(f"round {number}: receipts.csv does not say what the records say")


def _check_rows(run: RunFolder, chain: RoundChain) -> None:
    """Raise StatementError unless heads bind the very rows of the run's tables."""
    counted = counted_rounds(chain)
    try:
        rows = rows_by_round(run, max(counted))
    except EvidenceError as error:
        raise StatementError(str(error)) from error
    for number, one in sorted(counted.items()):
        if rows[number] != one.rows:
            raise StatementError(
                f"round {number}: a table was changed: its rows are not those that the head of "
                "this round binds"
            )
    if state_of(run) != chain.rounds[-1].state:
        raise StatementError(
            f"{run.config.path.name}, {run.provenance.path.name}, {run.names.path.name} or "
            f"{run.own_parts.path.name} was changed: the last head binds others"
        )


def _check_attempts(member: HeldReceipts, declared: Attempts | None) -> None:
    """Raise StatementError where a member saw another attempt than the one that was declared."""
    for seen in member.attempts:
        if declared is None or seen.number > declared.number:
            continue  # It came later: that is said.
        if seen.number < 1 or seen.end != declared.end(seen.number):
            raise StatementError(
                f"{member.name} holds receipts of another attempt {seen.number} at run "
                f"{printable(declared.name)!r} than the statement declares: id {seen.run[:8]}"
            )


def _check_signed_attempts(chain: RoundChain, signed: Signatures, names: Names) -> None:
    """Raise StatementError where an update was signed in another attempt than its round's."""
    counted = {number: one.attempt for number, one in counted_rounds(chain).items()}
    last = 0
    for (number, client_id), update in sorted(signed.items()):
        attempt = counted.setdefault(number, update.attempt)  # Without receipts: the others'.
        if update.attempt != attempt:
            raise StatementError(
                f"round {number}: {_called(client_id, names)} signed its update in attempt "
                f"{update.attempt}, and the round is of attempt {attempt}"
            )
        if attempt < last:
            raise StatementError(
                f"round {number} is of attempt {attempt}, and a round before it of attempt {last}"
            )
        last = attempt


def _never_told(missing: Mapping[int, set[int]], names: Names) -> str:
    """Return which rounds were done again without whose knowledge, in words."""
    rounds = ", ".join(map(str, sorted(missing)))
    members = enumerated(_called(i, names) for i in set().union(*missing.values()))
    return (
        f"rounds {rounds} were done again after the run was resumed, and nothing that these "
        f"members hold covers it: {members}; it takes their receipts, or their keys and updates "
        "that they signed in that attempt"
    )


def _called(client_id: int, names: Names) -> str:
    return next((of[client_id] for of in names if client_id in of), f"client {client_id}")


def _by_round(rows: Sequence[Mapping[str, str]]) -> dict[int, list[Mapping[str, str]]]:
    found = defaultdict[int, list[Mapping[str, str]]](list)
    for row in rows:
        found[int(row["round"])].append(row)
    return found


def _compare(held: Sequence[HeldReceipts]) -> None:
    """Raise StatementError where two members were told different histories."""
    roots: dict[int, tuple[str, bytes]] = {}
    for member in held:
        for told in member.rounds:
            name, root = roots.setdefault(told.size, (member.name, told.root))
            if root != told.root:
                raise StatementError(
                    f"the server told {name} and {member.name} different histories: both have a "
                    f"signed head of {told.size} lines, and they differ"
                )


def _check_lines(member: HeldReceipts, chain: RoundChain, signed: Signatures) -> None:
    """Raise StatementError where the records say other things than a member was told, or sent."""
    leaves = dict(line for one in chain.rounds for line in one.numbered())
    for index, line in member.lines:
        if (there := leaves.get(index, "nothing")) != line:
            raise StatementError(
                f"round {read_leaf(line)['round']}: history was rewritten: {member.name} has a "
                f"receipt for '{line}'; the records have '{there}'"
            )
    for one in chain.rounds:  # Also those of which it has no receipt yet.
        for line in one.own.values():
            leaf = read_leaf(line)
            if leaf["client_id"] and int(leaf["client_id"]) in member.client_ids:
                _check_sent(member, one.attempt, leaf, signed)


def _check_sent(
    member: HeldReceipts, attempt: int, leaf: Mapping[str, str], signed: Signatures
) -> None:
    """Raise StatementError where a member's line says otherwise than what it sent.

    In a round that was done again it may have sent nothing, or another update.
    """
    number, update = int(leaf["round"]), leaf["update"]
    sent = member.sent.get((attempt, number))
    own = signed.get((number, int(leaf["client_id"])))
    if sent and update and update not in sent:
        is_own = own is not None and own.sent.hex() == update
        raise StatementError(
            f"round {number}: {member.name} says that it sent another update than "
            f"{update[:16]}, which "
            + ("it signed" if is_own else "the records have without its signature")
        )
    if sent and leaf["status"] in ("away", "failed"):
        raise StatementError(
            f"round {number}: {member.name} sent an update, and the records say {leaf['status']!r}"
        )


def _check_end(member: HeldReceipts, chain: RoundChain) -> None:
    """Raise StatementError where a member took part in a round behind the last one."""
    if not chain.rounds:
        return
    end = chain.rounds[-1]
    last = member.last_sent.get(end.attempt, 0)
    if last > end.number:
        raise StatementError(
            f"{member.name} sent an update in round {last}, and the records end with round "
            f"{end.number}"
        )


def _check_heads(member: HeldReceipts, chain: RoundChain) -> None:
    """Raise StatementError unless the records lead to every head that a member holds."""
    keys = {one.key for one in chain.rounds}
    for told in member.rounds:
        if keys and told.key not in keys:
            raise StatementError(f"{member.name} holds a head that is signed with another key")
        if chain.sizes.get(told.root) != told.size:
            later = (one.number for one in chain.rounds if one.size > told.start)
            raise StatementError(
                f"from round {next(later, '?')} on, history was rewritten: {member.name} holds a "
                f"signed head of {told.size} lines that the records do not lead to"
            )
