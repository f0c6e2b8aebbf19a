"""A member checks what the server tells of its records, and keeps it.

What it sent in which round, and the heads that it saw, lie in the node's state for as long as the
run goes on, and in the ``receipts-dir`` of its own config for good. Nothing that the server tells
stops the member's work: what does not hold is a warning in its log.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from flwr.app import ConfigRecord, Context, RecordDict

from fedif_consortium.evidence.merkle import begins_with
from fedif_consortium.evidence.receipt_messages import SEEN_RECORD, Receipts, read_receipts
from fedif_consortium.evidence.receipts import read_leaf
from fedif_consortium.evidence.reply_signing import record_digest
from fedif_consortium.evidence.signed_update import SignedUpdate
from fedif_flower.errors import EvidenceError, FedIFError, StorageError
from fedif_flower.messages.instructions import RECEIPTS_KEY, ROUND_KEY, RUN_ID_KEY
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.reply_arrays import model_arrays_of
from fedif_flower.messages.text import printable
from fedif_flower.storage import make_folder, write_atomically

MOST_RUNS, MOST_FILES = 100, 20_000  # In a receipts-dir, and in a run's folder there.
_REMEMBERED = 64  # Rounds, and heads, in the node's state.
_RUN = re.compile(r"[0-9a-f]{32}")
logger = logging.getLogger(__name__)


class ReceiptKeeper:
    """A node's memory of one run: what it sent, what it was told.

    Parameters
    ----------
    context : Context
        The node's.
    run : str
        The run's id.

    Raises
    ------
    EvidenceError
        If the id is none.
    """

    def __init__(self, context: Context, run: str) -> None:
        if not _RUN.fullmatch(run):
            raise EvidenceError(f"run {printable(run)!r} is no id of a run")
        self.run, self._node_id = run, context.node_id
        self._state, self._key = context.state, f"receipts.{run}"
        held = context.state.get(self._key)
        remembered = json.loads(str(held["memory"])) if isinstance(held, ConfigRecord) else {}
        self._heads: dict[str, str] = remembered.get("heads", {})  # Root by size.
        # Digest by round, and of how many lines the records were then.
        self._sent: dict[str, tuple[str, int]] = remembered.get("sent", {})
        self._signer: str = remembered.get("signer", "")
        self._unproven: int = remembered.get("unproven", 0)
        node = NodeConfig.from_node_config(context.node_config)
        self._names = {str(context.node_id), str(node.partition_id)}
        self._folder: Path | None = None
        if node.receipts_dir:
            self._folder = Path(node.receipts_dir).expanduser().absolute() / run

    @property
    def last_size(self) -> int:
        """The size of the largest head that held; 0: none."""
        return max(map(int, self._heads), default=0)

    def take(self, told: Receipts) -> None:
        """Check what the server told, warn of what does not hold, and keep it."""
        for reason in [*self._wrong_with(told), *self._wrong_receipts(told)]:
            logger.warning("receipts of run %s: %s", self.run[:8], reason)
        if told.head.run == self.run:
            self._keep(told)
        self._save()

    def note_sent(self, server_round: int, sent: bytes, signed: SignedUpdate | None) -> None:
        """Remember what goes out in a round."""
        self._sent[str(server_round)] = (sent.hex(), self.last_size)
        about = {} if signed is None else signed.cells()
        about |= {"round": server_round, "node_id": self._node_id, "sent": sent.hex()}
        self._write(_round_file(server_round, sent.hex()), about)
        self._save()

    def _wrong_with(self, told: Receipts) -> list[str]:
        """Return why a head cannot be believed; take note of one that can."""
        head = told.head
        try:
            head.check()
        except EvidenceError as error:
            return [str(error)]
        if head.run != self.run:
            return ["the head is of another run"]
        if self._signer and head.key.hex() != self._signer:
            return ["the head is signed with another key than before"]
        self._signer = head.key.hex()
        if head.size < self.last_size:
            return [f"the records have {head.size} lines; there were {self.last_size} before"]
        before = self._heads.get(str(told.since)) if told.since else None
        if self._heads.get(str(head.size), head.root.hex()) != head.root.hex() or (
            before is not None
            and not begins_with(told.since, bytes.fromhex(before), head.size, head.root, told.proof)
        ):
            return [f"history was rewritten: the records told before, of {self.last_size} lines"]
        self._unproven = self._unproven + 1 if self._heads and before is None else 0
        self._heads[str(head.size)] = head.root.hex()
        if self._unproven > 1:  # One reply may have been lost, with what it said.
            return ["the server does not prove that the records begin with what it told before"]
        return []

    def _wrong_receipts(self, told: Receipts) -> list[str]:
        """Return what is wrong with single receipts."""
        reasons = []
        for receipt in told.receipts:
            try:
                leaf = read_leaf(receipt.leaf)
            except EvidenceError as error:
                reasons.append(str(error))
                continue
            where, (sent, size) = f"round {leaf['round']}", self._sent.get(leaf["round"], ("", 0))
            # An older line is of the same round before the run was resumed.
            is_own = bool(sent) and receipt.index >= size
            if not receipt.holds(told.head):
                reasons.append(f"{where}: this node's line is not in the records")
            elif leaf["client_id"] not in self._names:
                reasons.append(f"{where}: the line is another member's")
            elif is_own and leaf["update"] and leaf["update"] != sent:
                reasons.append(f"{where}: the records have another update than this node sent")
            elif is_own and leaf["status"] in ("away", "failed"):
                reasons.append(f"{where}: this node sent an update; the records say no reply came")
        return [printable(reason) for reason in reasons]

    def _keep(self, told: Receipts) -> None:
        """Write the head and the receipts, whatever they are worth."""
        head = told.head
        self._write(f"head-{head.size:012d}-{head.root.hex()[:8]}.json", head.cells())
        for receipt in told.receipts:
            try:
                number = int(read_leaf(receipt.leaf)["round"])
            except (EvidenceError, ValueError):
                continue
            about_leaf = {
                "leaf": receipt.leaf,
                "index": receipt.index,
                "path": [step.hex() for step in receipt.path],
                "size": head.size,
                "root": head.root.hex(),
            }
            self._write(f"receipt-{number:06d}-{receipt.index:012d}.json", about_leaf)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file into the run's folder, if there is room; one that is there stays."""
        if self._folder is None or (self._folder / name).exists():
            return
        try:
            make_folder(self._folder.parent)
            if not self._folder.is_dir() and _count(self._folder.parent) >= MOST_RUNS:
                raise StorageError(f"{self._folder.parent} holds {MOST_RUNS} runs: move some away")
            make_folder(self._folder)
            if _count(self._folder) >= MOST_FILES:
                raise StorageError(f"{self._folder} holds {MOST_FILES} files: move it away")
            write_atomically(self._folder / name, json.dumps({"run": self.run, **content}) + "\n")
        except (StorageError, OSError) as error:
            logger.warning("a receipt was not kept: %s", error)

    def _save(self) -> None:
        """Put what is remembered into the node's state."""
        self._heads = dict(sorted(self._heads.items(), key=_number)[-_REMEMBERED:])
        self._sent = dict(sorted(self._sent.items(), key=_number)[-_REMEMBERED:])
        memory = {
            "heads": self._heads,
            "sent": self._sent,
            "signer": self._signer,
            "unproven": self._unproven,
        }
        self._state[self._key] = ConfigRecord({"memory": json.dumps(memory)})


def take_receipts(content: RecordDict, context: Context) -> None:
    """Check and keep what a message tells of the server's records, if it tells anything."""
    try:
        told = read_receipts(content)
        if told is not None:
            ReceiptKeeper(context, told.head.run).take(told)
    except (FedIFError, ValueError) as error:
        logger.warning("%s", printable(str(error)))


def note_sent(
    content: RecordDict, settings: ConfigRecord, context: Context, signed: SignedUpdate | None
) -> None:
    """Remember what a reply holds, and let it say which head of the records was seen last."""
    if not settings.get(RECEIPTS_KEY):
        return
    try:
        keeper = ReceiptKeeper(context, str(settings.get(RUN_ID_KEY, "")))
    except EvidenceError as error:
        logger.warning("%s", error)
        return
    sent = signed.statement.sent if signed is not None else record_digest(model_arrays_of(content))
    content[SEEN_RECORD] = ConfigRecord({"size": keeper.last_size})
    keeper.note_sent(cast(int, settings[ROUND_KEY]), sent, signed)


def _round_file(server_round: int, sent: str) -> str:
    return f"sent-{server_round:06d}-{sent[:8]}.json"


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


def _number(item: tuple[str, object]) -> int:
    return int(item[0])
