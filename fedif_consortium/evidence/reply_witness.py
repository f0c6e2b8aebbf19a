"""Replies signed by their member: how the server looks at them."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedif_consortium.evidence.client_part import UNSIGNED
from fedif_consortium.evidence.reply_signing import (
    SIGNATURE_RECORD,
    claimed_examples,
    record_digest,
)
from fedif_consortium.evidence.signed_update import SignedUpdate, UpdateStatement
from fedif_flower.errors import EvidenceError, ReplyError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.strategies.callbacks import Callback, Question, RunningStrategy

_MOST_BYTES = 1024  # Of a key or a signature.


@dataclass(frozen=True)
class SeenReply:
    """What the server can show of a reply later: the update's digest, and who signed it."""

    node: ClientNode
    digest: bytes
    signed: SignedUpdate | None = None
    arrays: ArrayRecord | None = field(default=None, repr=False)


class ReplyWitness(Callback):
    """Looks at the signature of each reply, and remembers what it saw in the round.

    It is told of each round as a callback; :meth:`look` is for the strategy's setup.

    Parameters
    ----------
    run : str
        The run's id, which members sign.
    required : bool
        Whether replies without a signature are refused.
    digests : bool
        Whether the digest of every reply is taken, signed or not.
    keeps : bool
        Whether the arrays of signed replies stay in memory until the next round.
    late_rounds : int
        A reply may come so many rounds late.

    Attributes
    ----------
    seen : dict of int to SeenReply
        The round's replies by node id, as far as their arrays could be read.
    heads : set of bytes
        What members were told of the records: one of them is in what they sign.
    """

    def __init__(
        self,
        run: str,
        *,
        required: bool = False,
        digests: bool = False,
        keeps: bool = False,
        late_rounds: int = 0,
    ) -> None:
        self.run, self._late_rounds = run, late_rounds
        self.seen: dict[int, SeenReply] = {}
        self.heads: set[bytes] = set()
        self._required, self._digests, self._keeps = required, digests, keeps
        self._sent: dict[int, ArrayRecord | bytes] = {}  # By round; a digest once it was needed.
        self._strategy: RunningStrategy | None = None
        self._keys: dict[int, bytes] = {}  # That a node has signed with.

    def on_start(self, strategy: RunningStrategy) -> None:
        """Note whose model members are sent."""
        self._strategy = strategy

    def on_asked(self, question: Question) -> None:
        """Take note of the model that a round's members are sent."""
        assert self._strategy is not None  # on_start
        self.begin(question.server_round, self._strategy.model.record)

    def begin(self, server_round: int, sent: ArrayRecord) -> None:
        """Take note of what a round's members are sent."""
        self.seen = {}
        # Of an older model no more is kept than its digest.
        older = [t for t in self._sent if server_round - t <= self._late_rounds]
        self._sent = {t: self._digest_of(t) for t in older}
        self._sent[server_round] = sent

    def look(self, content: RecordDict, arrays: ArrayRecord, node: ClientNode, asked: int) -> None:
        """Take note of a reply to round ``asked``, and check its signature.

        Raises
        ------
        ReplyError
            If it is signed falsely, or not at all where that is required.
        """
        record = content.get(SIGNATURE_RECORD)
        if not isinstance(record, ConfigRecord):
            if self._digests:
                self.seen[node.node_id] = SeenReply(node, record_digest(arrays))
            if self._required:
                raise ReplyError(
                    f"it is not signed: this run has evidence.require-signatures; {UNSIGNED}"
                )
            return
        digest = record_digest(arrays)
        self.seen[node.node_id] = SeenReply(node, digest)
        key, signature = (_bytes(record, name) for name in ("key", "signature"))
        head = _bytes(record, "head") if "head" in record else b""
        received = self._digest_of(asked)
        if _bytes(record, "received") != received:
            raise ReplyError("it signed that it received another model than it was sent")
        if _bytes(record, "sent") != digest:
            raise ReplyError("it signed another update than it sent")
        if head and head not in self.heads:
            raise ReplyError("it signed that it was told other records than these")
        statement = UpdateStatement(
            self.run, asked, node.node_id, claimed_examples(content), received, digest, head
        )
        signed = SignedUpdate(statement, key, signature)
        try:
            signed.check()
        except EvidenceError as error:
            raise ReplyError(str(error)) from error
        if self._keys.setdefault(node.node_id, key) != key:
            raise ReplyError("it is signed with another key than before")
        kept = arrays if self._keeps else None
        self.seen[node.node_id] = SeenReply(node, digest, signed, kept)

    def _digest_of(self, server_round: int) -> bytes:
        """Return the digest of the model that was sent in a round."""
        sent = self._sent.get(server_round, b"")
        if not isinstance(sent, bytes):
            sent = self._sent[server_round] = record_digest(sent)
        return sent


def _bytes(record: ConfigRecord, name: str) -> bytes:
    value = record.get(name)
    if not isinstance(value, bytes) or len(value) > _MOST_BYTES:
        raise ReplyError(f"its signature has no {name!r}")
    return value
