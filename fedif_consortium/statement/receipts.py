"""Checking the chain of a run's records, and members' receipts against it and each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedif_consortium.evidence.receipt_book import read_chain
from fedif_consortium.evidence.receipts import (
    MemberLine,
    RoundChain,
    ToldRound,
    read_leaf,
    round_leaves,
)
from fedif_consortium.evidence.signed_update import SignedUpdate
from fedif_consortium.statement.signatures import read_signatures
from fedif_flower.errors import ConfigError, EvidenceError, StatementError
from fedif_flower.foreign import parse_json, read_whole
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.provenance import RUN_ID


@dataclass(frozen=True)
class HeldReceipts:
    """What a member kept of a run.

    Attributes
    ----------
    name : str
        What its folder is called.
    rounds : tuple of ToldRound
        What the server signed.
    sent : mapping of int to set of str
        Digests of what it sent, by round.
    """

    name: str
    rounds: tuple[ToldRound, ...] = ()
    sent: Mapping[int, set[str]] = field(default_factory=dict)

    def lines(self) -> list[tuple[int, str]]:
        """Return its leaves, in their order, with their numbers."""
        return sorted(line for told in self.rounds for line in told.numbered())


@dataclass(frozen=True)
class CheckedReceipts:
    """What was found right: so many heads and lines of a member, that its folder holds."""

    name: str
    heads: int
    lines: int


def last_head(run: RunFolder) -> str:
    """Return size and root of the last head, for a manifest; empty: there are no receipts."""
    return _told(read_chain(run, _run_id(run)))


def redone_rounds(chain: RoundChain) -> list[int]:
    """Return the rounds that were done again after the run was resumed."""
    rounds = [number for number, _ in chain.heads]
    return sorted({number for number in rounds if rounds.count(number) > 1})


def check_round_chain(run: RunFolder, told: str) -> RoundChain | None:
    """Check that heads are those of the leaves, and the leaves those of the records.

    Parameters
    ----------
    run : RunFolder
        The run.
    told : str
        The last head, as the manifest has it.

    Raises
    ------
    StatementError
        Naming the first round that is not as members were told.
    """
    try:
        chain = read_chain(run, _run_id(run))
        if _told(chain) != told:
            raise StatementError(f"{run.round_heads.path.name} is not what the manifest says")
        if chain is None:
            return None
        _check_heads(run, chain)
        _check_leaves(run, chain)
    except (ConfigError, EvidenceError, ValueError, KeyError) as error:
        raise StatementError(f"the chain of receipts cannot be read: {error}") from error
    return chain


def _check_heads(run: RunFolder, chain: RoundChain) -> None:
    if len({head.key for _, head in chain.heads}) > 1:
        raise StatementError(f"{run.round_heads.path.name}: the heads are signed with several keys")
    for number, head in chain.heads:
        head.check()
        if chain.sizes.get(head.root) != head.size:
            raise StatementError(f"round {number}: receipts.csv does not lead to the head of it")


def _check_leaves(run: RunFolder, chain: RoundChain) -> None:
    """Raise StatementError unless each round's last leaves say what the records say."""
    lines, attributed = _by_round(run.clients.read()), _by_round(run.attribution.read())
    signed = read_signatures(run)
    leaves: dict[int, list[str]] = {}
    start = 0
    for number, head in chain.heads:
        leaves[number] = chain.leaves[start : head.size]  # A round that is done again counts last.
        start = head.size
    for row in run.attributed_rounds.read():
        number = int(row["round"])
        if number not in leaves:
            raise StatementError(f"round {number} is not in receipts.csv")
        found = [read_leaf(leaf) for leaf in leaves[number]]
        of_clients = lines[number]
        members = [
            MemberLine(line["client_id"], leaf["update"], line["weight"], line["status"])
            for line, leaf in zip(of_clients, found, strict=False)
        ]
        told = {
            line["client_id"]: (line["contribution"], line["credited"])
            for line in attributed[number]
        }
        if len(members) < len(of_clients) or round_leaves(number, members, told) != leaves[number]:
            raise StatementError(f"round {number}: receipts.csv does not say what the records say")
        for leaf in found:
            update = signed.get((number, int(leaf["client_id"])))
            if update is not None and leaf["update"] not in ("", update.statement.sent.hex()):
                raise StatementError(
                    f"round {number}: receipts.csv has another update of client "
                    f"{leaf['client_id']} than that signed"
                )


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
    rounds, sent = [], dict[int, set[str]]()
    for path in paths:
        try:
            content = parse_json(read_whole(path))
            if path.name.startswith("round-"):
                rounds.append(ToldRound.read(run, content))
                rounds[-1].check()
                for _, leaf in rounds[-1].numbered():
                    read_leaf(leaf)
            elif path.name.startswith("sent-"):
                _check_own_signature(run, content)
                sent.setdefault(int(content["round"]), set()).add(content["sent"])
        except (OSError, KeyError, TypeError, ValueError, AttributeError, EvidenceError) as error:
            raise StatementError(f"{path} was changed: {error!r:.120}") from error
    return HeldReceipts(name, tuple(rounds), sent)


def check_receipts(
    run: RunFolder, chain: RoundChain | None, folders: Sequence[Path]
) -> tuple[CheckedReceipts, ...]:
    """Compare members' receipts with each other, and with a run's records.

    Parameters
    ----------
    run : RunFolder
        The run.
    chain : RoundChain or None
        As :func:`check_round_chain` has found it.
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
    held = [read_held(folder, _run_id(run)) for folder in folders]
    _compare(held)
    if chain is None:
        raise StatementError(f"{held[0].name} holds receipts, and the records have no chain")
    key, signed = chain.heads[-1][1].key, read_signatures(run)
    for member in held:  # A line says more than a head does.
        _check_lines(member, chain)
    for member in held:
        _check_heads_held(member, chain, key)
        _check_sent(member, signed)
    return tuple(CheckedReceipts(m.name, len(m.rounds), len(m.lines())) for m in held)


def check_signed_heads(run: RunFolder, chain: RoundChain | None) -> None:
    """Check that the records lead to what members signed that they were told.

    Raises
    ------
    StatementError
        Naming the round in which a member signed, and the member.
    """
    known = chain.sizes if chain else {}
    for (number, client_id), update in sorted(read_signatures(run).items()):
        head = update.statement.head
        if head and head not in known:
            raise StatementError(
                f"before round {number}, history was rewritten: client {client_id} signed that it "
                "was told of other rounds than the records have"
            )


def _check_lines(member: HeldReceipts, chain: RoundChain) -> None:
    """Raise StatementError unless a member's lines are those of the records."""
    for index, leaf in member.lines():
        there = chain.leaves[index] if index < len(chain.leaves) else "nothing"
        if there != leaf:
            number = read_leaf(leaf)["round"]
            raise StatementError(
                f"round {number}: history was rewritten: {member.name} has a receipt for "
                f"'{leaf}'; the records have '{there}'"
            )


def _check_heads_held(member: HeldReceipts, chain: RoundChain, key: bytes) -> None:
    """Raise StatementError unless the records lead to every head that a member holds."""
    covered = 0
    for head in sorted((told.head for told in member.rounds), key=lambda head: head.size):
        if head.key != key:
            raise StatementError(f"{member.name} holds a head that is signed with another key")
        if chain.sizes.get(head.root) != head.size:
            first = min((t for t, h in chain.heads if h.size > covered), default="?")
            raise StatementError(
                f"from round {first} on, history was rewritten: {member.name} holds a signed head "
                f"of {head.size} lines that the records do not lead to"
            )
        covered = head.size


def _check_sent(member: HeldReceipts, signed: Mapping[tuple[int, int], SignedUpdate]) -> None:
    """Raise StatementError where the records say of an update what its sender does not."""
    for _, line in member.lines():
        leaf = read_leaf(line)
        number, sent = int(leaf["round"]), member.sent.get(int(leaf["round"]), set())
        update = signed.get((number, int(leaf["client_id"])))
        if leaf["update"] and sent and leaf["update"] not in sent:
            held = update is not None and update.statement.sent.hex() == leaf["update"]
            raise StatementError(
                f"round {number}: {member.name} says that it sent another update than "
                f"{leaf['update'][:16]}, which "
                + ("it signed" if held else "the records have without its signature")
            )
        if sent and leaf["status"] in ("away", "failed"):
            raise StatementError(
                f"round {number}: {member.name} sent an update, and the records say "
                f"{leaf['status']!r}"
            )


def _compare(held: Sequence[HeldReceipts]) -> None:
    """Raise StatementError where two members were told different histories."""
    roots: dict[int, tuple[str, bytes]] = {}
    for member in held:
        for head in (told.head for told in member.rounds):
            name, root = roots.setdefault(head.size, (member.name, head.root))
            if root != head.root:
                raise StatementError(
                    f"the server told {name} and {member.name} different histories: both have a "
                    f"signed head of {head.size} lines, and they differ{_rounds(held, head.size)}"
                )


def _rounds(held: Sequence[HeldReceipts], size: int) -> str:
    """Return up to which round a head of so many lines goes, as far as receipts tell."""
    rounds = [
        int(read_leaf(leaf)["round"])
        for member in held
        for index, leaf in member.lines()
        if index < size
    ]
    return f" (up to round {max(rounds)})" if rounds else ""


def _check_own_signature(run: str, content: Mapping[str, Any]) -> None:
    """Raise EvidenceError unless a member's file says what the member signed, if it signed."""
    if "signature" not in content:
        return
    SignedUpdate.read(run, content).check()


def _by_round(rows: Sequence[Mapping[str, str]]) -> dict[int, list[Mapping[str, str]]]:
    found = defaultdict[int, list[Mapping[str, str]]](list)
    for row in rows:
        found[int(row["round"])].append(row)
    return found


def _told(chain: RoundChain | None) -> str:
    return f"{chain.heads[-1][1].size} {chain.heads[-1][1].root.hex()}" if chain else ""


def _run_id(run: RunFolder) -> str:
    return str(run.provenance.read().get(RUN_ID, ""))
