"""The run's records as a chain of rounds: members get its heads, with their own lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord

from fedif_consortium.evidence.receipts import (
    LEAF,
    RECEIPTS_RECORD,
    RoundChain,
    SignedHead,
    round_leaves,
    to_record,
)
from fedif_consortium.evidence.reply_witness import ReplyWitness
from fedif_flower.errors import ConfigError
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
        self._folder, self._witness, self._key, self._run = folder, witness, key, witness.run
        # Of a process that was stopped, perhaps.
        self._earlier = [one.entry() for one in read_chain(folder, witness.run).rounds]
        self._chain = RoundChain()
        self._restored: list[dict[str, Any]] = []  # Until the run begins.
        self._journaled = {-1: 0}  # How many rounds a checkpoint has, by its own.
        self._waiting: dict[int, list[tuple[str, str, str, str]]] = {}  # Until it is attributed.
        self._seen: dict[int, bytes] = {}  # The end of the chain that a client has signed.

    def enclose(self, node: ClientNode) -> Content:
        """Return the rounds that the node does not know yet."""
        return _told(self._chain, node.client_id, self._seen.get(node.client_id, b""))

    def on_round(self, report: RoundReport) -> None:
        """Take note of what became of the round's members."""
        lines, left = [], dict(self._witness.seen)  # A second reply of a node is no update.
        for client in report.clients:
            node, seen = client.node, left.pop(client.node.node_id, None)
            if seen is not None and seen.signed is not None:
                self._seen[node.client_id] = seen.signed.head
            update, weight = seen.digest.hex() if seen else "", str(cell(client.weight))
            lines.append((str(node.client_id), update, weight, str(client.status)))
        self._waiting[report.round] = lines

    def attributed(self, found: RoundAttribution) -> None:
        """Add a round, whose contributions are known now."""
        attributed = {
            str(client.client_id): (str(cell(client.contribution)), str(cell(client.credited)))
            for client in found.clients
        }
        lines = self._waiting.pop(found.server_round, [])
        leaves = round_leaves(found.server_round, lines, attributed)
        if leaves:
            self._add(found.server_round, leaves, partial(SignedHead.by, self._key, run=self._run))

    def lines(self, after: int, last_round: int) -> list[dict[str, Any]]:
        """Return the rounds since the checkpoint of one."""
        rounds = self._chain.rounds
        self._journaled[last_round] = len(rounds)
        return [one.entry() for one in rounds[self._journaled.get(after, 0) :]]

    def restore(
        self,
        lines: Sequence[Mapping[str, Any]],
        memory: Mapping[str, Any] | None,  # noqa: ARG002
        last_round: int,
    ) -> None:
        """Go on behind a checkpoint's rounds, and behind what members were told since."""
        saved = [dict(line) for line in lines]
        self._journaled = {last_round: len(saved)}
        is_longer = self._earlier[: len(saved)] == saved
        self._restored = self._earlier if is_longer else saved

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Write the rounds so far."""
        for entry in self._restored:
            head = SignedHead.read(self._run, entry)
            self._add(entry["round"], entry["leaves"], lambda head=head, **_: head)

    def _add(self, number: int, leaves: Sequence[str], signed: Callable[..., SignedHead]) -> None:
        """Write a round: its leaves first, its head last."""
        folder = self._folder
        if not self._chain.rounds:
            folder.receipts.begin()
            folder.round_heads.begin()
        self._chain.add(number, leaves, signed)
        head = self._chain.rounds[-1].head
        self._witness.heads.add(head.root)
        with writing(folder.receipts.path), folder.receipts.path.open("a", encoding="utf-8") as f:
            f.write("".join(f"{leaf}\n" for leaf in leaves))  # As it was hashed.
        folder.round_heads.append([{"round": number, **head.cells()}])


def read_chain(folder: RunFolder, run: str) -> RoundChain:
    """Return the chain in a run's folder, which may have none. No head is checked.

    Leaves behind the last head were told to nobody.

    Raises
    ------
    ConfigError
        If a line is none.
    """
    chain = RoundChain()
    try:
        lines = [",".join(row[name] for name in LEAF) for row in folder.receipts.read()]
        for row in folder.round_heads.read():
            head = SignedHead.read(run, row)
            leaves = lines[chain.sizes[chain.root] : head.size]
            chain.add(int(row["round"]), leaves, lambda head=head, **_: head)
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"{folder.round_heads.path}: {error}") from error
    return chain


def last_receipts(folder: RunFolder, client_ids: Iterable[int]) -> dict[int, Content]:
    """Return what members are told at the end of a run, by client id."""
    chain = read_chain(folder, run_id(folder))
    signed = folder.signatures.read()
    seen = {int(row["client_id"]): bytes.fromhex(row["head"]) for row in signed}  # The last one.
    return {i: _told(chain, i, seen.get(i, b"")) for i in client_ids}


def run_id(folder: RunFolder) -> str:
    """Return the id that a run's members sign, as its records have it."""
    return str(folder.provenance.read().get(RUN_ID, ""))


def _told(chain: RoundChain, client_id: int, seen: bytes) -> Content:
    rounds = chain.told(client_id, seen)
    return {RECEIPTS_RECORD: to_record(rounds)} if rounds else {}
