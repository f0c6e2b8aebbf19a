"""Checking the chain of a run's records, and members' receipts against it and each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedif_consortium.evidence.check_signatures import Signatures
from fedif_consortium.evidence.receipt_book import read_chain, run_id
from fedif_consortium.evidence.receipts import (
    MemberLine,
    RoundChain,
    ToldRound,
    read_leaf,
    round_leaves,
)
from fedif_consortium.evidence.signed_update import SignedUpdate
from fedif_flower.errors import ConfigError, EvidenceError, StatementError
from fedif_flower.foreign import parse_json, read_whole
from fedif_flower.run.folder import RunFolder


@dataclass(frozen=True)
class HeldReceipts:
    """What a member kept of a run: what the server signed, and digests of what it sent, by round.

    ``name`` is what its folder is called.
    """

    name: str
    rounds: Sequence[ToldRound]
    sent: Mapping[int, set[str]]

    def lines(self) -> list[tuple[int, str]]:
        """Return its leaves, in their order, with their numbers."""
        return sorted(line for told in self.rounds for line in told.numbered())


class CheckedReceipts(NamedTuple):
    """What was found right: so many heads and lines of a member, that its folder holds."""

    name: str
    heads: int
    lines: int


def last_head(run: RunFolder) -> str:
    """Return size and root of the last head, for a manifest; empty: there are no receipts."""
    return _end(read_chain(run, run_id(run)))


def _end(chain: RoundChain) -> str:
    return f"{chain.heads[-1][1].size} {chain.heads[-1][1].root.hex()}" if chain.heads else ""


def redone_rounds(chain: RoundChain) -> tuple[int, ...]:
    """Return the rounds that were done again after the run was resumed."""
    rounds = [number for number, _ in chain.heads]
    return tuple(sorted({number for number in rounds if rounds.count(number) > 1}))


def check_round_chain(run: RunFolder, told: str, signed: Signatures) -> RoundChain:
    """Check that heads are those of the leaves, and the leaves those of the records.

    Parameters
    ----------
    run : RunFolder
        The run.
    told : str
        The last head, as the manifest has it.
    signed : mapping
        What members signed.

    Raises
    ------
    StatementError
        Naming the first round that is not as members were told.
    """
    heads_file = run.round_heads.path.name
    try:
        chain = read_chain(run, run_id(run))
        if _end(chain) != told:
            raise StatementError(f"{heads_file} is not what the manifest says")
        if len({head.key for _, head in chain.heads}) > 1:
            raise StatementError(f"{heads_file}: the heads are signed with several keys")
        for number, head in chain.heads:
            head.check()
            if chain.sizes.get(head.root) != head.size:
                raise StatementError(
                    f"round {number}: receipts.csv does not lead to the head of it"
                )
        if chain.heads:
            _check_leaves(run, chain, signed)
    except (ConfigError, EvidenceError, ValueError, KeyError) as error:
        raise StatementError(f"the chain of receipts cannot be read: {error}") from error
    return chain


def check_signed_heads(chain: RoundChain, signed: Signatures) -> None:
    """Raise StatementError unless the records lead to what members signed that they were told."""
    for (number, client_id), update in sorted(signed.items()):
        if update.head and update.head not in chain.sizes:
            raise StatementError(
                f"before round {number}, history was rewritten: client {client_id} signed that it "
                "was told of other rounds than the records have"
            )


def _check_leaves(run: RunFolder, chain: RoundChain, signed: Signatures) -> None:
    """Raise StatementError unless each round's last leaves say what the records say."""
    lines, attributed = _by_round(run.clients.read()), _by_round(run.attribution.read())
    leaves = {entry["round"]: entry["leaves"] for entry in chain.entries()}
    for row in run.attributed_rounds.read():
        number = int(row["round"])
        if number not in leaves:
            raise StatementError(f"round {number} is not in receipts.csv")
        found = [read_leaf(leaf) for leaf in leaves[number]]
        members = [
            MemberLine(line["client_id"], leaf["update"], line["weight"], line["status"])
            for line, leaf in zip(lines[number], found, strict=False)
        ]
        told = {
            line["client_id"]: (line["contribution"], line["credited"])
            for line in attributed[number]
        }
        is_whole = len(members) == len(lines[number])
        if not is_whole or round_leaves(number, members, told) != leaves[number]:
            raise StatementError(f"round {number}: receipts.csv does not say what the records say")
        for leaf in found:
            update = signed.get((number, int(leaf["client_id"])))
            if update is not None and leaf["update"] not in ("", update.sent.hex()):
                raise StatementError(
                    f"round {number}: receipts.csv has another update of client "
                    f"{leaf['client_id']} than that signed"
                )


def _by_round(rows: Sequence[Mapping[str, str]]) -> dict[int, list[Mapping[str, str]]]:
    found = defaultdict[int, list[Mapping[str, str]]](list)
    for row in rows:
        found[int(row["round"])].append(row)
    return found


def read_held(folder: Path, run: str) -> HeldReceipts:
    """Read what a member kept of a run in its ``receipts-dir``.

    Raises
    ------
    ConfigError
        If it kept nothing of this run.
    StatementError
        Naming a file that is damaged, or says what nobody signed.
    """
    own = folder if folder.name == run else folder / run
    paths = sorted(own.glob("*.json")) if own.is_dir() else []
    if not paths:
        raise ConfigError(f"receipts = {str(folder)!r} holds none of run {run}")
    whole = own.absolute().parent
    # Of `fedif node join`: receipts/ in the folder of a node.
    name = (whole.parent if whole.name == "receipts" else whole).name
    rounds, sent = [], defaultdict[int, set[str]](set)
    for path in paths:
        try:
            content = parse_json(read_whole(path))
            if path.name.startswith("round-"):
                rounds.append(ToldRound.read(run, content))
                rounds[-1].check()
            elif path.name.startswith("sent-"):
                if "signature" in content:  # It may have signed nothing.
                    SignedUpdate.read(run, content).check()
                sent[int(content["round"])].add(content["sent"])
        except (OSError, KeyError, TypeError, ValueError, EvidenceError) as error:
            raise StatementError(f"{path} was changed: {error!r:.120}") from error
    return HeldReceipts(name, rounds, sent)


def check_receipts(
    run: RunFolder, chain: RoundChain, signed: Signatures, folders: Sequence[Path]
) -> tuple[CheckedReceipts, ...]:
    """Compare members' receipts with each other, and with a run's records.

    Parameters
    ----------
    run : RunFolder
        The run.
    chain : RoundChain
        As it was read.
    signed : mapping
        What members signed.
    folders : sequence of Path
        Members' ``receipts-dir``.

    Raises
    ------
    ConfigError
        If a folder holds nothing of this run.
    StatementError
        Naming the round from which on history was rewritten, or the members who were told
        different ones.
    """
    held = [read_held(folder, run_id(run)) for folder in folders]
    _compare(held)
    if held and not chain.heads:
        raise StatementError(f"{held[0].name} holds receipts, and the records have no chain")
    for member in held:  # A line says more than a head does.
        for index, leaf in member.lines():
            there = chain.leaves[index] if index < len(chain.leaves) else "nothing"
            if there != leaf:
                raise StatementError(
                    f"round {read_leaf(leaf)['round']}: history was rewritten: {member.name} has a "
                    f"receipt for '{leaf}'; the records have '{there}'"
                )
    for member in held:
        _check_heads_held(member, chain)
        _check_sent(member, signed)
    return tuple(CheckedReceipts(m.name, len(m.rounds), len(m.lines())) for m in held)


def _compare(held: Sequence[HeldReceipts]) -> None:
    """Raise StatementError where two members were told different histories."""
    roots: dict[int, tuple[str, bytes]] = {}
    for member in held:
        for told in member.rounds:
            name, root = roots.setdefault(told.size, (member.name, told.root))
            if root != told.root:
                lines = [line for one in held for line in one.lines()]
                rounds = [int(read_leaf(leaf)["round"]) for i, leaf in lines if i < told.size]
                until = f" (up to round {max(rounds)})" if rounds else ""
                raise StatementError(
                    f"the server told {name} and {member.name} different histories: both have a "
                    f"signed head of {told.size} lines, and they differ{until}"
                )


def _check_heads_held(member: HeldReceipts, chain: RoundChain) -> None:
    """Raise StatementError unless the records lead to every head that a member holds."""
    covered = 0
    for told in sorted(member.rounds, key=lambda told: told.size):
        if told.key != chain.heads[-1][1].key:
            raise StatementError(f"{member.name} holds a head that is signed with another key")
        if chain.sizes.get(told.root) != told.size:
            first = min((t for t, head in chain.heads if head.size > covered), default="?")
            raise StatementError(
                f"from round {first} on, history was rewritten: {member.name} holds a signed head "
                f"of {told.size} lines that the records do not lead to"
            )
        covered = told.size


def _check_sent(member: HeldReceipts, signed: Signatures) -> None:
    """Raise StatementError where the records say of an update what its sender does not."""
    for _, line in member.lines():
        leaf = read_leaf(line)
        number, update = int(leaf["round"]), leaf["update"]
        sent = member.sent.get(number)
        if sent and update and update not in sent:
            own = signed.get((number, int(leaf["client_id"])))
            is_own = own is not None and own.sent.hex() == update
            raise StatementError(
                f"round {number}: {member.name} says that it sent another update than "
                f"{update[:16]}, which "
                + ("it signed" if is_own else "the records have without its signature")
            )
        if sent and leaf["status"] in ("away", "failed"):
            raise StatementError(
                f"round {number}: {member.name} sent an update, and the records say "
                f"{leaf['status']!r}"
            )
