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

from fedif_consortium.evidence.receipt_messages import Receipts, read_receipts
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

    @property
    def last_root(self) -> bytes:
        """The chain's end at that head, which the next signature includes; empty: none."""
        return bytes.fromhex(self._heads.get(str(self.last_size), ""))

    def take(self, told: Receipts) -> None:
        """Check what the server told, warn of what does not hold, and keep it."""
        for reason in [*self._wrong_with(told), *self._wrong_lines(told)]:
            logger.warning("receipts of run %s: %s", self.run[:8], printable(reason))
        for each in told.rounds:
            if each.own or each is told.rounds[-1]:
                head = each.head
                name = f"round-{head.size:012d}-{head.root.hex()[:8]}.json"
                self._write(name, each.cells())  # Whatever it is worth.
        self._save()

    def note_sent(self, server_round: int, sent: bytes, signed: SignedUpdate | None) -> None:
        """Remember what goes out in a round."""
        self._sent[str(server_round)] = (sent.hex(), self.last_size)
        about = {} if signed is None else signed.cells()
        about |= {"round": server_round, "node_id": self._node_id, "sent": sent.hex()}
        self._write(_round_file(server_round, sent.hex()), about)
        self._save()

    def _wrong_with(self, told: Receipts) -> list[str]:
        """Return why a history cannot be believed; take note of one that can."""
        before = told.rounds[0].before
        for each in told.rounds:
            try:
                each.check()
            except EvidenceError as error:
                return [str(error)]
            if each.before != before:
                return ["the rounds that were told do not follow from each other"]
            if each.head.key.hex() != (self._signer or told.head.key.hex()):
                return ["the head is signed with another key than before"]
            before = each.head.root
        self._signer = told.head.key.hex()
        if told.head.size < self.last_size:
            return [f"the records have {told.head.size} lines; there were {self.last_size} before"]
        start = told.rounds[0].start
        ends = {str(start): told.rounds[0].before.hex()}
        ends |= {str(each.head.size): each.head.root.hex() for each in told.rounds}
        known = {size: root for size, root in self._heads.items() if int(size) >= start}
        if any(ends.get(size) != root for size, root in known.items()):
            return [f"history was rewritten: the records told before, of {self.last_size} lines"]
        is_proven = start <= self.last_size or not self._heads
        self._unproven = 0 if is_proven else self._unproven + 1
        self._heads |= ends
        if self._unproven > 1:  # One reply may have been lost, with what it said.
            return ["the server does not prove that the records begin with what it told before"]
        return []

    def _wrong_lines(self, told: Receipts) -> list[str]:
        """Return what is wrong with this node's lines."""
        reasons = []
        for index, line in (found for each in told.rounds for found in each.numbered()):
            try:
                leaf = read_leaf(line)
            except EvidenceError as error:
                reasons.append(str(error))
                continue
            where, (sent, size) = f"round {leaf['round']}", self._sent.get(leaf["round"], ("", 0))
            # An older line is of the same round before the run was resumed.
            is_own = bool(sent) and index >= size
            if leaf["client_id"] not in self._names:
                reasons.append(f"{where}: the line is another member's")
            elif is_own and leaf["update"] and leaf["update"] != sent:
                reasons.append(f"{where}: the records have another update than this node sent")
            elif is_own and leaf["status"] in ("away", "failed"):
                reasons.append(f"{where}: this node sent an update; the records say no reply came")
        return reasons

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
            ReceiptKeeper(context, told.run).take(told)
    except (FedIFError, ValueError) as error:
        logger.warning("%s", printable(str(error)))


def note_sent(
    content: RecordDict, settings: ConfigRecord, context: Context, signed: SignedUpdate | None
) -> None:
    """Remember what a reply holds."""
    if not settings.get(RECEIPTS_KEY):
        return
    try:
        keeper = ReceiptKeeper(context, str(settings.get(RUN_ID_KEY, "")))
    except EvidenceError as error:
        logger.warning("%s", error)
        return
    sent = signed.statement.sent if signed is not None else record_digest(model_arrays_of(content))
    keeper.note_sent(cast(int, settings[ROUND_KEY]), sent, signed)


def _round_file(server_round: int, sent: str) -> str:
    return f"sent-{server_round:06d}-{sent[:8]}.json"


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


def _number(item: tuple[str, object]) -> int:
    return int(item[0])
