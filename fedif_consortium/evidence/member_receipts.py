"""A member checks what the server tells of its records, and keeps it.

What it sent in which round, and the last head, lie in the node's state, and in a file of the
``receipts-dir`` of its own config, since Flower forgets the state where a SuperNode is restarted.
All that it was told and sent lies there for good. Nothing that the server tells
stops the member's work: what does not hold is a warning in its log.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from pydantic import BaseModel

from fedif_consortium.evidence.attempts import NOT_COUNTED, AgreedRun, Hex, agreed_in
from fedif_consortium.evidence.receipts import (
    ToldRound,
    read_leaf,
    read_receipts,
    why_it_cannot_follow,
)
from fedif_consortium.evidence.signed import SignedUpdate, record_digest
from fedif_flower.client.app import ClientPart
from fedif_flower.errors import EvidenceError, FedIFError, StorageError
from fedif_flower.messages.arrays import arrays_of
from fedif_flower.messages.instructions import RECEIPTS_KEY, ROUND_KEY, RUN_ID_KEY
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import Finding, Status
from fedif_flower.messages.text import printable
from fedif_flower.storage import make_folder, write_atomically

if TYPE_CHECKING:
    from fedif_flower.tasks.task import Task

SIGNATURES_KEY = "require-signatures"  # In a run's instructions.
UNSIGNED = "it has no guard that signs: fedif node start --policy"
MOST_RUNS = 100  # In a receipts-dir.
MOST_FILES = 20_000  # In a run's folder there.
_REMEMBERED = 64  # Rounds, in the node's state.
_MEMORY = "memory"  # Of a run's folder: no .json, which are evidence.
RUN_ID = re.compile(r"[0-9a-f]{32}")
logger = logging.getLogger(__name__)


class _Memory(BaseModel):
    """What is remembered of a run: the last head that held, its signer, what was sent by round.

    ``last`` is the last round that was told, without its leaves. Beside what was sent stands how
    many lines the records had then.
    """

    size: int = 0
    root: Hex = b""
    signer: Hex = b""
    last: ToldRound | None = None
    sent: dict[int, tuple[Hex, int]] = {}


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
        if not RUN_ID.fullmatch(run):
            raise EvidenceError(f"run {printable(run)!r} is no id of a run")
        self.run = run
        self._node_id = context.node_id
        self._state = context.state
        self._key = f"receipts.{run}"
        node = NodeConfig.from_node_config(context.node_config)
        self._folder: Path | None = None
        if node.receipts_dir:
            self._folder = Path(node.receipts_dir).expanduser().absolute() / run
        self._memory = self._remembered()

    def _remembered(self) -> _Memory:
        """Return what this node remembers of the run, also from before it was restarted."""
        record = self._state.get(self._key)
        if isinstance(record, ConfigRecord):
            return _Memory.model_validate_json(str(record["memory"]))
        if self._folder is None or not (self._folder / _MEMORY).exists():
            return _Memory()
        try:
            return _Memory.model_validate_json((self._folder / _MEMORY).read_bytes())
        except (OSError, ValueError) as error:
            words = "%s cannot be read; what the server tells next is compared with nothing: %s"
            logger.warning(words, self._folder / _MEMORY, printable(str(error), 200))
            return _Memory()

    @property
    def last_root(self) -> bytes:
        """The chain's end, as far as it held, which the next signature includes; empty: none."""
        return self._memory.root

    @property
    def keeps(self) -> bool:
        """Whether this member has a folder for receipts."""
        return self._folder is not None

    @property
    def is_begun(self) -> bool:
        """Whether this member has kept anything of the run."""
        return self._folder is not None and self._folder.is_dir()

    def require_room(self) -> None:
        """Raise StorageError where what this member is about to send would leave no evidence here.

        A server that fills the folder with runs that it invents would else have the next one
        without.
        """
        if self._folder is None:
            return
        runs = self._folder.parent
        if self._folder.is_dir():
            if len(list(self._folder.glob("*.json"))) >= MOST_FILES:
                raise StorageError(f"{self._folder} holds {MOST_FILES} files: move it away")
        elif runs.is_dir() and len(list(runs.iterdir())) >= MOST_RUNS:
            raise StorageError(f"{runs} holds {MOST_RUNS} runs: move some away")

    def take(self, rounds: Sequence[ToldRound]) -> None:
        """Check what the server told, warn of what does not hold, and keep it."""
        reason, self._memory = self._judge(rounds)
        for words in (reason, *self._wrong_lines(rounds)):
            if words:
                logger.warning("receipts of run %s: %s", self.run[:8], printable(words))
        for told_round in rounds:
            # Of lines, its own alone: a folder speaks for one member.
            own_round = told_round.for_member(self._node_id)
            if own_round.own or told_round is rounds[-1]:
                self._keep(own_round)
        self._save()

    def _keep(self, told_round: ToldRound) -> None:
        """Keep what the server signed of a round, however it fits to what it told before.

        What nobody signed shows nothing, and whoever reads the folder would refuse all of it.
        """
        with suppress(EvidenceError):
            told_round.check()
            name = f"round-{told_round.size:012d}-{told_round.root.hex()[:8]}.json"
            self._write(name, told_round.cells())

    def note_sent(
        self,
        server_round: int,
        sent: bytes,
        signed: SignedUpdate | None,
        agreed: AgreedRun = NOT_COUNTED,
    ) -> None:
        """Remember what goes out in a round of an attempt."""
        self._memory.sent.pop(server_round, None)  # The server says which round it is.
        self._memory.sent[server_round] = (sent, self._memory.size)
        content = agreed.model_dump()
        if signed is not None:
            content = signed.cells()
        content["round"] = server_round
        content["node_id"] = self._node_id
        content["sent"] = sent.hex()
        # A round that is done again may bring the very same update: that it was sent is evidence.
        self._write(f"sent-{server_round:06d}-{sent.hex()[:8]}-{agreed.attempt}.json", content)
        self._save()

    def _judge(self, rounds: Sequence[ToldRound]) -> tuple[str, _Memory]:
        """Return why a history cannot be believed (empty: it can), and what to remember then."""
        before = self._memory
        first = rounds[0]
        last = rounds[-1]
        reason = self._why_no_chain(rounds)
        if reason:
            return reason, before
        # Who signed is remembered even where the history is none.
        with_signer = before.model_copy(update={"signer": last.key})
        if last.size < before.size:
            reason = f"the records have {last.size} lines; there were {before.size} before"
            return reason, with_signer
        ends = {first.start: first.before}  # Of the chain, by how many leaves lead to each.
        for told_round in rounds:
            ends[told_round.size] = told_round.root
        reaches_back = first.start <= before.size
        if before.size and reaches_back and ends.get(before.size) != before.root:
            reason = f"history was rewritten: the records told before, of {before.size} lines"
            return reason, with_signer
        without_leaves = last.model_copy(update={"hashes": (), "own": {}})
        after = with_signer.model_copy(
            update={"size": last.size, "root": last.root, "last": without_leaves}
        )
        if before.size and not reaches_back:
            return "the server does not prove that its records go on from before", after
        return "", after

    def _why_no_chain(self, rounds: Sequence[ToldRound]) -> str:
        """Return why rounds do not stand behind each other, and behind the last one told."""
        memory = self._memory
        first = rounds[0]
        signer = memory.signer or rounds[-1].key
        before = first.before
        behind: ToldRound | None = None
        if first.start == memory.size:
            behind = memory.last
        for told_round in rounds:
            try:
                told_round.check()
            except EvidenceError as error:
                return str(error)
            if told_round.before != before:
                return "the rounds that were told do not follow from each other"
            # In the middle of the chain, nothing is known of the round before the first one told.
            if behind is not None or not told_round.start:
                reason = why_it_cannot_follow(behind, told_round)
                if reason:
                    return f"history was rewritten: {reason}"
            if told_round.key != signer:
                return "the head is signed with another key than before"
            behind = told_round
            before = told_round.root
        return ""

    def _wrong_lines(self, rounds: Sequence[ToldRound]) -> Iterator[str]:
        """Return what is wrong with this node's lines."""
        for told_round in rounds:
            for index, line in told_round.numbered():
                yield self._wrong_with_line(index, read_leaf(line))

    def _wrong_with_line(self, index: int, leaf: Mapping[str, str]) -> str:
        """Return what is wrong with a line, by its number among all lines; empty: nothing."""
        where = f"round {leaf['round']}"
        if leaf["client_id"] != str(self._node_id):
            return f"{where}: the line is another member's"
        sent, size = self._memory.sent.get(int(leaf["round"]), (b"", 0))
        # An older line is of the same round before the run was resumed.
        if not sent or index < size:
            return ""
        if leaf["update"] and leaf["update"] != sent.hex():
            return f"{where}: the records have another update than this node sent"
        if leaf["status"] in ("away", "failed"):
            return f"{where}: this node sent an update; the records say no reply came"
        if leaf["status"] in ("refused", "revoked"):
            return f"{where}: this node sent an update; the records say {leaf['status']!r}"
        return ""

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file into the run's folder, if there is room; one that is there stays."""
        if self._folder is None or (self._folder / name).exists():
            return
        try:
            self.require_room()
            make_folder(self._folder)
            text = json.dumps({"run": self.run, **content})
            write_atomically(self._folder / name, f"{text}\n")
        except (StorageError, OSError) as error:
            logger.warning("a receipt was not kept: %s", error)

    def _save(self) -> None:
        """Put what is remembered into the node's state, and beside what is kept."""
        for number in list(self._memory.sent)[:-_REMEMBERED]:
            del self._memory.sent[number]
        text = self._memory.model_dump_json()
        self._state[self._key] = ConfigRecord({"memory": text})
        if self._folder is None or not self._folder.is_dir():
            return
        try:
            write_atomically(self._folder / _MEMORY, f"{text}\n")
        except (StorageError, OSError) as error:
            logger.warning("what is remembered of run %s was not kept: %s", self.run[:8], error)


def take_receipts(content: RecordDict, context: Context, *, is_round: bool = False) -> None:
    """Check and keep what a message tells of the server's records, if it tells anything.

    Nothing is kept of a run in which this member has no part, nor of another than the message is
    of: a server could invent as many as there is room for.

    Parameters
    ----------
    content : RecordDict
        Of the message.
    context : Context
        The node's.
    is_round : bool
        Whether the message asks for an update: then the member takes part.
    """
    try:
        rounds = read_receipts(content)
        if not rounds:
            return
        keeper = ReceiptKeeper(context, rounds[0].run)
        run = _run_of(content)
        if is_round and run != keeper.run:
            words = "receipts of run %s in a message of run %s: not kept"
            logger.warning(words, keeper.run[:8], printable(run[:8]))
        elif is_round or keeper.is_begun or not keeper.keeps:
            keeper.take(rounds)
        else:
            logger.warning("receipts of run %s, in which it had no part: not kept", keeper.run[:8])
    except (FedIFError, ValueError) as error:
        logger.warning("%s", printable(str(error)))


def _run_of(content: RecordDict) -> str:
    """Return the id of the run that a message says that it is of; empty: it says none."""
    settings = content.get("config")
    if not isinstance(settings, ConfigRecord):
        return ""
    return str(settings.get(RUN_ID_KEY, ""))


def require_room(content: RecordDict, context: Context) -> None:
    """Raise StorageError where a message asks for an update whose evidence finds no room here."""
    settings = content.get("config")
    if not isinstance(settings, ConfigRecord) or not settings.get(RECEIPTS_KEY):
        return
    with suppress(EvidenceError):
        ReceiptKeeper(context, _run_of(content)).require_room()


def take(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Take receipts, train, and note what goes out, where this node keeps receipts itself."""
    if not NodeConfig.from_node_config(context.node_config).receipts_dir:
        return call_next(message, context)
    require_room(message.content, context)
    take_receipts(message.content, context, is_round=True)
    reply = call_next(message, context)
    settings = cast(ConfigRecord, message.content["config"])
    if settings.get(RECEIPTS_KEY):
        try:
            keeper = ReceiptKeeper(context, _run_of(message.content))
            sent = record_digest(arrays_of(reply.content))
            agreed = agreed_in(settings)
            keeper.note_sent(cast(int, settings[ROUND_KEY]), sent, None, agreed)
        except FedIFError as error:
            logger.warning("%s", error)
    return reply


class TakenReceipts(ClientPart):
    """A member without a guard checks what it is told of the records.

    Nothing is signed here: an app is the operator's. The member's guard signs what leaves
    (:mod:`fedif_consortium.member.own_replies`), and takes receipts in place of this app.
    """

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return what takes receipts."""
        return [take]

    def checks(self, node: NodeConfig, settings: ConfigRecord) -> Sequence[Finding]:  # noqa: ARG002
        """Return whether the run takes a member that signs nothing; a guard answers instead."""
        if settings.get(SIGNATURES_KEY):
            words = f"this run has require-signatures, and this member does not sign: {UNSIGNED}"
            return [Finding("signing-key", Status.FAILED, words)]
        return [Finding("signing-key", Status.OK, "this member does not sign")]
