"""Checking the tree of a run's records, and members' receipts against it and each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedif_consortium.evidence.receipt_book import read_tree
from fedif_consortium.evidence.receipts import (
    MemberLine,
    Receipt,
    ReceiptTree,
    SignedHead,
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
    heads : tuple of SignedHead
        Those that the server signed.
    receipts : tuple of Receipt
        Its lines.
    sent : mapping of int to set of str
        Digests of what it sent, by round.
    """

    name: str
    heads: tuple[SignedHead, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    sent: Mapping[int, set[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckedReceipts:
    """What was found right: so many heads and lines of a member, that its folder holds."""

    name: str
    heads: int
    lines: int


def last_head(run: RunFolder) -> str:
    """Return size and root of the last head, for a manifest; empty: there are no receipts."""
    return _told(read_tree(run, _run_id(run)))


def redone_rounds(tree: ReceiptTree) -> list[int]:
    """Return the rounds that were done again after the run was resumed."""
    rounds = [number for number, _ in tree.heads]
    return sorted({number for number in rounds if rounds.count(number) > 1})


def check_tree(run: RunFolder, told: str) -> ReceiptTree | None:
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
        tree = read_tree(run, _run_id(run))
        if _told(tree) != told:
            raise StatementError(f"{run.tree_heads.path.name} is not what the manifest says")
        if tree is None:
            return None
        _check_heads(run, tree)
        _check_leaves(run, tree)
    except (ConfigError, EvidenceError, ValueError, KeyError) as error:
        raise StatementError(f"the tree of receipts cannot be read: {error}") from error
    return tree


def _check_heads(run: RunFolder, tree: ReceiptTree) -> None:
    if len({head.key for _, head in tree.heads}) > 1:
        raise StatementError(f"{run.tree_heads.path.name}: the heads are signed with several keys")
    for number, head in tree.heads:
        head.check()
        if tree.tree.root(head.size) != head.root:
            raise StatementError(f"round {number}: receipts.csv does not lead to the head of it")


def _check_leaves(run: RunFolder, tree: ReceiptTree) -> None:
    """Raise StatementError unless each round's last leaves say what the records say."""
    lines, attributed = _by_round(run.clients.read()), _by_round(run.attribution.read())
    signed = read_signatures(run)
    leaves: dict[int, list[str]] = {}
    start = 0
    for number, head in tree.heads:
        leaves[number] = tree.leaves[start : head.size]  # A round that is done again counts last.
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
    heads, receipts, sent = [], [], dict[int, set[str]]()
    for path in paths:
        try:
            content = parse_json(read_whole(path))
            if path.name.startswith("head-"):
                heads.append(SignedHead.read(run, content))
                heads[-1].check()
                if content["run"] != run:
                    raise ValueError(f"it is of run {content['run']!r:.40}")
            elif path.name.startswith("receipt-"):
                read_leaf(content["leaf"])
                hashes = tuple(bytes.fromhex(step) for step in content["path"])
                receipts.append(Receipt(content["leaf"], int(content["index"]), hashes))
                root = bytes.fromhex(content["root"])
                if not receipts[-1].holds(SignedHead("", int(content["size"]), root, b"", b"")):
                    raise ValueError("its path does not lead to its head")
            elif path.name.startswith("sent-"):
                _check_own_signature(run, content)
                sent.setdefault(int(content["round"]), set()).add(content["sent"])
        except (OSError, KeyError, TypeError, ValueError, AttributeError, EvidenceError) as error:
            raise StatementError(f"{path} was changed: {error!r:.120}") from error
    return HeldReceipts(name, tuple(heads), tuple(receipts), sent)


def check_receipts(
    run: RunFolder, tree: ReceiptTree | None, folders: Sequence[Path]
) -> tuple[CheckedReceipts, ...]:
    """Compare members' receipts with each other, and with a run's records.

    Parameters
    ----------
    run : RunFolder
        The run.
    tree : ReceiptTree or None
        As :func:`check_tree` has found it.
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
    if tree is None:
        raise StatementError(f"{held[0].name} holds receipts, and the records have no tree")
    key, signed = tree.heads[-1][1].key, read_signatures(run)
    for member in held:  # A line says more than a head does.
        _check_lines(member, tree)
    for member in held:
        _check_heads_held(member, tree, key)
        _check_sent(member, signed)
    return tuple(CheckedReceipts(m.name, len(m.heads), len(m.receipts)) for m in held)


def _check_lines(member: HeldReceipts, tree: ReceiptTree) -> None:
    """Raise StatementError unless a member's lines are those of the records."""
    for receipt in sorted(member.receipts, key=lambda r: r.index):
        there = tree.leaves[receipt.index] if receipt.index < len(tree.leaves) else "nothing"
        if there != receipt.leaf:
            number = read_leaf(receipt.leaf)["round"]
            raise StatementError(
                f"round {number}: history was rewritten: {member.name} has a receipt for "
                f"'{receipt.leaf}'; the records have '{there}'"
            )


def _check_heads_held(member: HeldReceipts, tree: ReceiptTree, key: bytes) -> None:
    """Raise StatementError unless the records lead to every head that a member holds."""
    covered = 0
    for head in sorted(member.heads, key=lambda h: h.size):
        if head.key != key:
            raise StatementError(f"{member.name} holds a head that is signed with another key")
        if head.size > len(tree.leaves) or tree.tree.root(head.size) != head.root:
            first = min((t for t, h in tree.heads if h.size > covered), default="?")
            raise StatementError(
                f"from round {first} on, history was rewritten: {member.name} holds a signed head "
                f"of {head.size} lines that the records do not lead to"
            )
        covered = head.size


def _check_sent(member: HeldReceipts, signed: Mapping[tuple[int, int], SignedUpdate]) -> None:
    """Raise StatementError where the records say of an update what its sender does not."""
    for receipt in member.receipts:
        leaf = read_leaf(receipt.leaf)
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
        for head in member.heads:
            name, root = roots.setdefault(head.size, (member.name, head.root))
            if root != head.root:
                raise StatementError(
                    f"the server told {name} and {member.name} different histories: both have a "
                    f"signed head of {head.size} lines, and they differ{_rounds(held, head.size)}"
                )


def _rounds(held: Sequence[HeldReceipts], size: int) -> str:
    """Return up to which round a head of so many lines goes, as far as receipts tell."""
    rounds = [
        int(read_leaf(receipt.leaf)["round"])
        for member in held
        for receipt in member.receipts
        if receipt.index < size
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


def _told(tree: ReceiptTree | None) -> str:
    return f"{tree.heads[-1][1].size} {tree.heads[-1][1].root.hex()}" if tree else ""


def _run_id(run: RunFolder) -> str:
    return str(run.provenance.read().get(RUN_ID, ""))
