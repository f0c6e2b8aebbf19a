"""The run's records as a Merkle tree: members get its head, and receipts for their own lines."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord

from fedif_consortium.evidence.receipt_messages import RECEIPTS_RECORD, receipts_for
from fedif_consortium.evidence.receipts import (
    LEAF,
    MemberLine,
    ReceiptTree,
    SignedHead,
    read_leaf,
    round_leaves,
)
from fedif_consortium.evidence.reply_witness import ReplyWitness
from fedif_flower.errors import ConfigError, EvidenceError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import Kept
from fedif_flower.run.provenance import RUN_ID
from fedif_flower.run.rows import cell
from fedif_flower.storage import writing
from fedif_flower.strategies.attributed import RoundAttribution
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.reports import RoundReport

Content = Mapping[str, ConfigRecord]
logger = logging.getLogger(__name__)


class ReceiptBook(Callback, Kept):
    """Adds each round to the tree once it is attributed, and tells members of it.

    The tree only grows: where a run goes on from a checkpoint, the rounds that are done again come
    behind those that members have receipts for.

    Parameters
    ----------
    folder : RunFolder
        The run's; what an earlier process wrote there is gone on with.
    witness : ReplyWitness
        Has the digests of the round's replies.
    key : Ed25519PrivateKey
        Signs heads.
    """

    def __init__(self, folder: RunFolder, witness: ReplyWitness, key: Ed25519PrivateKey) -> None:
        self._folder, self._witness, self._key = folder, witness, key
        self._earlier = _entries(folder)  # Of a process that was stopped, perhaps.
        self._tree = ReceiptTree()
        self._entries: list[dict[str, Any]] = []
        self._restored: list[tuple[dict[str, Any], SignedHead]] = []  # Until the run begins.
        self._journaled = {-1: 0}  # How many entries a checkpoint has, by its round.
        self._waiting: dict[int, list[MemberLine]] = {}  # By round, until it is attributed.
        self._seen: dict[int, int] = {}  # Size of the head that a client saw last.

    def enclose(self, node: ClientNode) -> Content:
        """Return the head, and the node's receipts."""
        found = receipts_for(self._tree, node.client_id, self._seen.get(node.client_id, 0))
        return {} if found is None else {RECEIPTS_RECORD: found.to_record()}

    def on_round(self, report: RoundReport) -> None:
        """Take note of what became of the round's members."""
        lines, shown = [], set()
        for client in report.clients:
            node = client.node
            seen = self._witness.seen.get(node.node_id)
            update = ""
            if seen is not None and node.node_id not in shown:
                update = seen.digest.hex()
                self._seen[node.client_id] = seen.head
            shown.add(node.node_id)
            weight = str(cell(client.weight))
            lines.append(MemberLine(str(node.client_id), update, weight, client.status))
        self._waiting[report.server_round] = lines

    def attributed(self, found: RoundAttribution) -> None:
        """Add a round, whose contributions are known now."""
        attributed = {
            str(client.client_id): (str(cell(client.contribution)), str(cell(client.credited)))
            for client in found.clients
        }
        lines = self._waiting.pop(found.server_round, [])
        leaves = round_leaves(found.server_round, lines, attributed)
        root = self._grown(leaves)
        head = SignedHead.by(self._key, self._witness.run, len(self._tree.leaves), root)
        self._add({"round": found.server_round, "leaves": leaves, **head.cells()}, head)

    def on_end(self) -> None:
        """Remember which heads members saw, for the last receipts, which come later."""
        self._folder.receipts_seen.write({str(key): size for key, size in self._seen.items()})

    def lines(self, after: int, last_round: int) -> list[dict[str, Any]]:
        """Return the entries since the checkpoint of a round."""
        start = self._journaled.get(after, 0)
        self._journaled[last_round] = len(self._entries)
        return self._entries[start:]

    def restore(
        self,
        lines: Sequence[Mapping[str, Any]],
        memory: Mapping[str, Any] | None,  # noqa: ARG002
        last_round: int,
    ) -> None:
        """Go on behind a checkpoint's entries, and behind what members were told since."""
        saved = [dict(line) for line in lines]
        told = self._earlier[: len(saved)] == saved
        if not told and self._earlier:
            logger.warning("receipts.csv is not what the checkpoint says: it is written anew")
        self._journaled = {last_round: len(saved)}
        entries = self._earlier if told else saved
        self._restored = [(entry, SignedHead.read(self._witness.run, entry)) for entry in entries]

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Write the entries so far."""
        for entry, head in self._restored:
            self._grown(entry["leaves"])
            self._add(entry, head)

    def _grown(self, leaves: Sequence[str]) -> bytes:
        self._tree.add(leaves)
        return self._tree.tree.root()

    def _add(self, entry: dict[str, Any], head: SignedHead) -> None:
        """Write an entry: its leaves first, its head last."""
        if not self._entries:
            self._folder.receipts.begin()
            self._folder.tree_heads.begin()
        self._entries.append(entry)
        self._tree.heads.append((entry["round"], head))
        path = self._folder.receipts.path
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{leaf}\n" for leaf in entry["leaves"]))  # As it was hashed.
        self._folder.tree_heads.append([entry])


def read_tree(folder: RunFolder, run: str) -> ReceiptTree | None:
    """Return the tree in a run's folder; ``None``: it has none. No head is checked.

    Raises
    ------
    ConfigError
        If a line is none.
    """
    entries = _entries(folder)
    if not entries:
        return None
    tree = ReceiptTree()
    for entry in entries:
        tree.add(entry["leaves"])
        tree.heads.append((entry["round"], SignedHead.read(run, entry)))
    return tree


def last_receipts(folder: RunFolder, client_ids: Iterable[int]) -> dict[int, Content]:
    """Return what members are told at the end of a run, by client id."""
    tree = read_tree(folder, str(folder.provenance.read().get(RUN_ID, "")))
    if tree is None:
        return {}
    seen = folder.receipts_seen.read() if folder.receipts_seen.path.is_file() else {}
    found = {i: receipts_for(tree, i, int(seen.get(str(i), 0))) for i in client_ids}
    return {i: {RECEIPTS_RECORD: told.to_record()} for i, told in found.items() if told}


def _entries(folder: RunFolder) -> list[dict[str, Any]]:
    """Return what was written: for each head its round, its leaves, and its cells.

    Leaves behind the last head were told to nobody.
    """
    if not folder.tree_heads.path.is_file():
        return []
    lines = [",".join(row[name] for name in LEAF) for row in folder.receipts.read()]
    entries, start = [], 0
    try:
        for row in folder.tree_heads.read():
            size = int(row["size"])
            if not start <= size <= len(lines):
                raise ValueError(f"{size} leaves after {start}, of {len(lines)}")
            leaves = lines[start:size]
            entries.append({**row, "round": int(row["round"]), "leaves": leaves, "size": size})
            for leaf in leaves:
                read_leaf(leaf)
            start = size
    except (KeyError, ValueError, TypeError, EvidenceError) as error:
        raise ConfigError(f"{folder.tree_heads.path}: {error}") from error
    return entries
