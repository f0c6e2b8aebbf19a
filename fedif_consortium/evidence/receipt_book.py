"""The run's records as a chain of rounds: members get its heads, with their own lines."""

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
    RoundChain,
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
    """Adds each round to the chain once it is attributed, and tells members of it.

    The chain only grows: where a run goes on from a checkpoint, the rounds that are done again come
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
        self._chain = RoundChain()
        self._entries: list[dict[str, Any]] = []
        self._restored: list[tuple[dict[str, Any], SignedHead]] = []  # Until the run begins.
        self._journaled = {-1: 0}  # How many entries a checkpoint has, by its round.
        self._waiting: dict[int, list[MemberLine]] = {}  # By round, until it is attributed.
        self._seen: dict[int, bytes] = {}  # The end of the chain that a client has signed.

    def enclose(self, node: ClientNode) -> Content:
        """Return the rounds that the node does not know yet."""
        found = receipts_for(self._chain, node.client_id, self._seen.get(node.client_id, b""))
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
                if seen.signed is not None:
                    self._seen[node.client_id] = seen.signed.statement.head
            shown.add(node.node_id)
            weight = str(cell(client.weight))
            lines.append(MemberLine(str(node.client_id), update, weight, client.status))
        self._waiting[report.round] = lines

    def attributed(self, found: RoundAttribution) -> None:
        """Add a round, whose contributions are known now."""
        attributed = {
            str(client.client_id): (str(cell(client.contribution)), str(cell(client.credited)))
            for client in found.clients
        }
        lines = self._waiting.pop(found.server_round, [])
        leaves = round_leaves(found.server_round, lines, attributed)
        root = self._chain.add(leaves)
        head = SignedHead.by(self._key, self._witness.run, len(self._chain.leaves), root)
        self._add({"round": found.server_round, "leaves": leaves, **head.cells()}, head)

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
            self._chain.add(entry["leaves"])
            self._add(entry, head)

    def _add(self, entry: dict[str, Any], head: SignedHead) -> None:
        """Write an entry: its leaves first, its head last."""
        if not self._entries:
            self._folder.receipts.begin()
            self._folder.round_heads.begin()
        self._entries.append(entry)
        self._chain.heads.append((entry["round"], head))
        self._witness.heads.add(head.root)
        path = self._folder.receipts.path
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{leaf}\n" for leaf in entry["leaves"]))  # As it was hashed.
        self._folder.round_heads.append([entry])


def read_chain(folder: RunFolder, run: str) -> RoundChain | None:
    """Return the chain in a run's folder; ``None``: it has none. No head is checked.

    Raises
    ------
    ConfigError
        If a line is none.
    """
    entries = _entries(folder)
    if not entries:
        return None
    chain = RoundChain()
    for entry in entries:
        chain.add(entry["leaves"])
        chain.heads.append((entry["round"], SignedHead.read(run, entry)))
    return chain


def last_receipts(folder: RunFolder, client_ids: Iterable[int]) -> dict[int, Content]:
    """Return what members are told at the end of a run, by client id."""
    chain = read_chain(folder, str(folder.provenance.read().get(RUN_ID, "")))
    if chain is None:
        return {}
    signed = folder.signatures.read() if folder.signatures.path.is_file() else []
    seen = {int(row["client_id"]): bytes.fromhex(row["head"]) for row in signed}  # The last one.
    found = {i: receipts_for(chain, i, seen.get(i, b"")) for i in client_ids}
    return {i: {RECEIPTS_RECORD: told.to_record()} for i, told in found.items() if told}


def _entries(folder: RunFolder) -> list[dict[str, Any]]:
    """Return what was written: for each head its round, its leaves, and its cells.

    Leaves behind the last head were told to nobody.
    """
    if not folder.round_heads.path.is_file():
        return []
    lines = [",".join(row[name] for name in LEAF) for row in folder.receipts.read()]
    entries, start = [], 0
    try:
        for row in folder.round_heads.read():
            size = int(row["size"])
            if not start <= size <= len(lines):
                raise ValueError(f"{size} leaves after {start}, of {len(lines)}")
            leaves = lines[start:size]
            entries.append({**row, "round": int(row["round"]), "leaves": leaves, "size": size})
            for leaf in leaves:
                read_leaf(leaf)
            start = size
    except (KeyError, ValueError, TypeError, EvidenceError) as error:
        raise ConfigError(f"{folder.round_heads.path}: {error}") from error
    return entries
