"""A member checks the receipts that the server sends, and keeps them.

The node remembers the last head, and what it sent in which round. This memory is stored in the
node's state, and in a file of the node's ``receipts-dir``, since Flower forgets the state when a
SuperNode restarts. The same folder keeps all receipts, and the digests of all updates that were
sent, for good.

Receipts that do not hold lead to a warning in the member's log, and never stop its work.
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

SIGNATURES_KEY = "require-signatures"  # A key of a run's instructions to members.
HOW_TO_SIGN = "it has no guard that signs: fedif node start --policy"
MOST_RUNS = 100  # The most entries of a receipts-dir, which has a folder for each run.
MOST_FILES = 20_000  # The most files of evidence in a run's folder.
_REMEMBERED = 64  # The number of rounds whose sent digests the memory holds.
_MEMORY = "memory"  # A file in a run's folder. Without .json, since such files are evidence.
RUN_ID = re.compile(r"[0-9a-f]{32}")
logger = logging.getLogger(__name__)


class _ReceiptMemory(BaseModel):
    """What a node remembers of a run.

    Attributes
    ----------
    size, root : int, bytes
        The number of leaves and the hash of the last head that passed the check.
    signer : bytes
        The public key (DER) that signs heads.
    last : ToldRound, optional
        The last round that passed the check, without its leaves.
    sent : dict of int to (bytes, int)
        By round: the digest of what was sent, and the value of ``size`` at that time.
    attempts : dict of int to int
        By round: the attempt in which it was sent; 0 where attempts are not counted.
    """

    size: int = 0
    root: Hex = b""
    signer: Hex = b""
    last: ToldRound | None = None
    sent: dict[int, tuple[Hex, int]] = {}
    attempts: dict[int, int] = {}


class ReceiptKeeper:
    """A node's receipts of one run: checks them against what it remembers, and keeps them.

    Parameters
    ----------
    context : Context
        The node's context, whose state holds the memory.
    run : str
        The run's id.

    Raises
    ------
    EvidenceError
        If ``run`` is not 32 hexadecimal digits.
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

    def _remembered(self) -> _ReceiptMemory:
        """Return the node's memory of the run, from its state or else from the run's folder."""
        record = self._state.get(self._key)
        if isinstance(record, ConfigRecord):
            return _ReceiptMemory.model_validate_json(str(record["memory"]))
        if self._folder is None or not (self._folder / _MEMORY).exists():
            return _ReceiptMemory()
        try:
            return _ReceiptMemory.model_validate_json((self._folder / _MEMORY).read_bytes())
        except (OSError, ValueError) as error:
            words = "%s cannot be read; what the server tells next is compared with nothing: %s"
            logger.warning(words, self._folder / _MEMORY, printable(str(error), 200))
            return _ReceiptMemory()

    @property
    def last_root(self) -> bytes:
        """The last head that passed the check; the next signature includes it. Empty if none."""
        return self._memory.root

    @property
    def keeps(self) -> bool:
        """Whether this member has a folder for receipts."""
        return self._folder is not None

    @property
    def is_begun(self) -> bool:
        """Whether this member has kept or remembers anything of the run."""
        # It remembers also what it could not write, as on a full disk.
        remembers = bool(self._memory.root or self._memory.sent)
        return remembers or (self._folder is not None and self._folder.is_dir())

    def require_room(self) -> None:
        """Raise StorageError if there is no room to keep evidence of the next update.

        The member then sends no update. Otherwise a server could fill the folder with invented
        runs, and the member would take part in the next run without evidence.
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
        """Check the rounds that the server told, warn of what does not hold, and keep them."""
        reason, self._memory = self._judge(rounds)
        for words in (reason, *self._wrong_lines(rounds)):
            if words:
                logger.warning("receipts of run %s: %s", self.run[:8], printable(words))
        for told_round in rounds:
            # Other members' leaves are left out: a folder has the receipts of one member.
            own_round = told_round.for_member(self._node_id)
            # The last head covers all rounds before it, so heads of other rounds are not needed.
            if own_round.own or told_round is rounds[-1]:
                self._keep(own_round)
        self._save()

    def _keep(self, told_round: ToldRound) -> None:
        """Keep a signed round, whether or not it follows from what was told before.

        A round whose signature does not fit is not kept: it proves nothing, and a check of the
        folder would fail because of it.
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
        """Remember an update that goes out, and keep its digest.

        Parameters
        ----------
        server_round : int
            The round in which the update was asked for.
        sent : bytes
            The update's digest.
        signed : SignedUpdate, optional
            What the member signed; ``None`` if it does not sign.
        agreed : AgreedRun
            The attempt, where nothing is signed.
        """
        # Remove and add, so that the round counts as the latest: _save drops the oldest entries,
        # and the server may name the same round again.
        self._memory.sent.pop(server_round, None)
        self._memory.sent[server_round] = (sent, self._memory.size)
        self._memory.attempts[server_round] = agreed.attempt
        content = agreed.model_dump()
        if signed is not None:
            content = signed.cells()
        content["round"] = server_round
        content["node_id"] = self._node_id
        content["sent"] = sent.hex()
        # With the attempt: the same update may be sent again when a round is done again, and each
        # time is evidence.
        self._write(f"sent-{server_round:06d}-{sent.hex()[:8]}-{agreed.attempt}.json", content)
        self._save()

    def _judge(self, rounds: Sequence[ToldRound]) -> tuple[str, _ReceiptMemory]:
        """Return why rounds do not continue what was told before, and the new memory.

        The reason is empty if they do.
        """
        before = self._memory
        first = rounds[0]
        last = rounds[-1]
        reason = self._why_no_chain(rounds)
        if reason:
            return reason, before
        # The signer is remembered even if the rounds do not continue those before.
        with_signer = before.model_copy(update={"signer": last.key})
        if last.size < before.size:
            reason = f"the records have {last.size} lines; there were {before.size} before"
            return reason, with_signer
        ends = {first.start: first.before}  # The chain's heads, by the number of leaves before.
        for told_round in rounds:
            ends[told_round.size] = told_round.root
        reaches_back = first.start <= before.size
        if before.size and reaches_back and ends.get(before.size) != before.root:
            reason = (
                "history was rewritten: what the server tells now does not contain the "
                f"{before.size} lines that it told before"
            )
            return reason, with_signer
        without_leaves = last.model_copy(update={"hashes": (), "own": {}})
        after = with_signer.model_copy(
            update={"size": last.size, "root": last.root, "last": without_leaves}
        )
        if before.size and not reaches_back:
            reason = (
                f"the receipts skip rounds after the {before.size} lines that were told before: "
                "nobody can check that the records go on from these"
            )
            return reason, after
        return "", after

    def _why_no_chain(self, rounds: Sequence[ToldRound]) -> str:
        """Return why rounds do not follow from each other, or from the last one; empty if they do.

        All heads have to be signed with the key that the memory has; if it has none, with one key.
        """
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
            # If the first round told is in the middle of the chain, the round before is unknown.
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
        """Yield what is wrong with each line that the rounds have in clear; empty if nothing is."""
        for told_round in rounds:
            for index, line in told_round.numbered():
                yield self._wrong_with_line(index, read_leaf(line), told_round.attempt)

    def _wrong_with_line(self, index: int, leaf: Mapping[str, str], attempt: int) -> str:
        """Return what is wrong with a line; empty if nothing is.

        Parameters
        ----------
        index : int
            The line's number among all lines of the run.
        leaf : mapping of str to str
            The line's values by column.
        attempt : int
            The attempt of the line's round.
        """
        where = f"round {leaf['round']}"
        if leaf["client_id"] != str(self._node_id):
            return f"{where}: the line is another member's"
        server_round = int(leaf["round"])
        sent, size = self._memory.sent.get(server_round, (b"", 0))
        # A line that was in the records when the update was sent is from an earlier attempt at the
        # same round, before the run was resumed.
        if not sent or index < size:
            return ""
        # If the server went down after the update was sent, the records have the round's next
        # attempt alone. In that one this member may have sent nothing.
        sent_in = self._memory.attempts.get(server_round, 0)
        if sent_in and sent_in != attempt:
            return ""
        if leaf["update"] and leaf["update"] != sent.hex():
            return f"{where}: the records have another update than this node sent"
        status = leaf["status"]
        if status == "away":  # An update is noted before it leaves: the node may have died there.
            return (
                f"{where}: this node sent an update; the records say 'away': was it late, or lost "
                "on its way?"
            )
        if status in ("failed", "refused", "revoked"):
            return f"{where}: this node sent an update; the records say {status!r}"
        return ""

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file into the run's folder if there is room; an existing file is not changed."""
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
        """Store the memory in the node's state, and in the run's folder if there is one."""
        for number in list(self._memory.sent)[:-_REMEMBERED]:
            del self._memory.sent[number]
            self._memory.attempts.pop(number, None)
        text = self._memory.model_dump_json()
        self._state[self._key] = ConfigRecord({"memory": text})
        if self._folder is None or not self._folder.is_dir():
            return
        try:
            write_atomically(self._folder / _MEMORY, f"{text}\n")
        except (StorageError, OSError) as error:
            logger.warning("what is remembered of run %s was not kept: %s", self.run[:8], error)


def take_receipts(content: RecordDict, context: Context, *, is_round: bool = False) -> None:
    """Check and keep the receipts in a message, if it has any.

    If the message asks for an update, its receipts are kept only if they are of its own run. If it
    does not, they are kept only if they are of a run in which this member has taken part.
    Otherwise a server could fill the folder with invented runs.

    Parameters
    ----------
    content : RecordDict
        The message's content.
    context : Context
        The node's context.
    is_round : bool
        Whether the message asks for an update, so that the member takes part in its run.
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
    """Return the id of the run to which a message says it belongs; empty if it says none."""
    settings = content.get("config")
    if not isinstance(settings, ConfigRecord):
        return ""
    return str(settings.get(RUN_ID_KEY, ""))


def require_room(content: RecordDict, context: Context) -> None:
    """Raise StorageError if a message is of a run with receipts, and there is no room for them."""
    settings = content.get("config")
    if not isinstance(settings, ConfigRecord) or not settings.get(RECEIPTS_KEY):
        return
    with suppress(EvidenceError):
        ReceiptKeeper(context, _run_of(content)).require_room()


def take(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Take receipts, train, and note what goes out; train alone if the app keeps no receipts."""
    # The app's config has no receipts-dir where the member's guard takes receipts.
    if not NodeConfig.from_node_config(context.node_config).receipts_dir:
        return call_next(message, context)
    take_receipts(message.content, context, is_round=True)
    # Afterwards, since the receipts may have filled the folder.
    require_room(message.content, context)
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
    """The app of a member without a guard checks and keeps receipts.

    It signs nothing, because the operator provides the app. A guard, where a member has one, signs
    what leaves (:mod:`fedif_consortium.member.own_replies`) and takes receipts in the app's place.
    """

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return the mod that takes receipts."""
        return [take]

    def checks(self, node: NodeConfig, settings: ConfigRecord) -> Sequence[Finding]:  # noqa: ARG002
        """Return a finding that fails if the run requires signatures: this member does not sign.

        Where a member has a guard, the guard gives this finding in place of the app.
        """
        if settings.get(SIGNATURES_KEY):
            words = f"this run has require-signatures, and this member does not sign: {HOW_TO_SIGN}"
            return [Finding("signing-key", Status.FAILED, words)]
        return [Finding("signing-key", Status.OK, "this member does not sign")]
