"""The server checks the signatures of replies, and records them.

With ``updates.keep``, the arrays of signed replies are kept as they came. They are needed beside
the kept updates: an update is a difference in the server's precision and may have been shortened,
but members sign the arrays that they send.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedif_consortium.evidence.attempts import NOT_COUNTED, AgreedRun
from fedif_consortium.evidence.member_receipts import HOW_TO_SIGN
from fedif_consortium.evidence.signed import (
    SIGNATURE_RECORD,
    SignedUpdate,
    claimed_examples,
    first_error,
    record_digest,
)
from fedif_flower.errors import EvidenceError, ReplyError
from fedif_flower.messages.arrays import view_array
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.records import records_of
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import PartState
from fedif_flower.server.record import Round, Step
from fedif_flower.server.run import Callback, RunningStrategy
from fedif_flower.storage import make_folder, write_atomically

# Entries of a file with signed replies, beside the arrays.
TRAINED = "trained"  # The names of the trained parameters, in the order of the vector.
TYPES = "types"  # Their types in the server's model, since a member may send wider numbers.


@dataclass(frozen=True)
class SeenReply:
    """What the server can prove of a reply later.

    Attributes
    ----------
    node : ClientNode
        The node that sent it.
    digest : bytes
        The digest of its arrays.
    signed : SignedUpdate, optional
        What the member signed; ``None`` if it signed nothing.
    arrays : ArrayRecord, optional
        The arrays, if signed replies are kept.
    """

    node: ClientNode
    digest: bytes
    signed: SignedUpdate | None = None
    arrays: ArrayRecord | None = field(default=None, repr=False)


class ReplyWitness(Callback, PartState):
    """Checks the signature of each reply, and writes a line of ``signatures.csv`` for it.

    It learns of rounds as a callback. :meth:`look` is called with each reply: it is the ``look`` of
    :class:`~fedif_flower.server.setup.Setup`. Without a signed reply, no file is written.

    Parameters
    ----------
    folder : RunFolder
        The run's folder.
    run : str
        The run's id, which members sign.
    agreed : AgreedRun
        The attempt at the run, which members sign as well.
    heads : container of bytes
        All heads of the run's records; a member signs the last one that it was told.
    registered : callable
        Returns the public keys (DER) that nodes log in with, by node id, as far as they are known.
    required : bool
        Whether replies without a signature are refused.
    digests : bool
        Whether the digest of every reply is taken, signed or not; receipts need it.
    keeps : bool
        Whether the signed replies of each step are written to ``updates/sent-000001.npz``.
    late_rounds : int
        How many rounds late a reply may come.

    Attributes
    ----------
    seen : dict of int to SeenReply
        The round's replies by node id; without those that are neither signed nor need a digest.
    """

    def __init__(
        self,
        folder: RunFolder,
        run: str,
        *,
        agreed: AgreedRun = NOT_COUNTED,
        heads: Container[bytes] = (),
        registered: Callable[[], Mapping[int, bytes]] = dict,
        required: bool = False,
        digests: bool = False,
        keeps: bool = False,
        late_rounds: int = 0,
    ) -> None:
        self.run = run
        self.agreed = agreed
        self.seen: dict[int, SeenReply] = {}
        self._heads = heads
        self._late_rounds = late_rounds
        self._registered = registered
        self._required = required
        self._digests = digests
        self._keeps = keeps
        # The model that was sent in each round; its digest alone once that was computed.
        self._sent: dict[int, ArrayRecord | bytes] = {}
        self._strategy: RunningStrategy | None = None
        # The public key (DER) by which each node is known: registered, or that of its first
        # signature.
        self._keys: dict[int, bytes] = {}
        self._table = folder.signatures
        self._updates = folder.updates
        self._rows: list[dict[str, Any]] = []

    def on_start(self, strategy: RunningStrategy) -> None:
        """Keep the strategy, whose model members are sent, and write the lines restored so far."""
        self._strategy = strategy
        rows = self._rows
        self._rows = []
        self._add(rows)
        if self._keeps:
            make_folder(self._updates)

    def on_asked(self, current: Round) -> None:
        """Keep the model that the round's members are about to be sent."""
        assert self._strategy is not None  # on_start
        self.begin(current.round, self._strategy.model.record)

    def begin(self, server_round: int, sent: ArrayRecord) -> None:
        """Keep the model ``sent`` in a round, and forget the replies of the round before."""
        self.seen = {}
        for earlier in list(self._sent):
            if server_round - earlier > self._late_rounds:
                del self._sent[earlier]
            else:
                # Late replies need only the digest of an older model.
                self._sent[earlier] = self._digest_of(earlier)
        self._sent[server_round] = sent

    def look(self, content: RecordDict, arrays: ArrayRecord, node: ClientNode, asked: int) -> None:
        """Note a reply to a request of round ``asked``, and check its signature.

        Raises
        ------
        ReplyError
            If its signature is false, or missing where signatures are required.
        """
        record = records_of(content, ConfigRecord).get(SIGNATURE_RECORD)
        if record is not None or self._digests:
            self.seen[node.node_id] = SeenReply(node, record_digest(arrays))
        if record is not None:
            # The server's own values come last, so that they replace what the reply claims.
            cells = {
                **record,
                "asked_in": asked,
                "node_id": node.node_id,
                **self.agreed.terms(),
                "examples": claimed_examples(content),
            }
            self._check(cells, arrays, self.seen[node.node_id])
        elif self._required:
            raise ReplyError(
                f"it is not signed: this run has evidence.require-signatures; {HOW_TO_SIGN}"
            )

    def _check(self, cells: Mapping[str, Any], arrays: ArrayRecord, seen: SeenReply) -> None:
        """Note a reply's signature with the signed values ``cells``; raise ReplyError if false."""
        node = seen.node
        try:
            signed = SignedUpdate.read(self.run, cells)
            if signed.received != self._digest_of(signed.asked_in):
                raise EvidenceError("it signed that it received another model than it was sent")
            if signed.sent != seen.digest:
                raise EvidenceError("it signed another update than it sent")
            if signed.head and signed.head not in self._heads:
                raise EvidenceError("it signed that it was told other records than these")
            signed.check()
            if not self._is_known(node.node_id, signed.key):
                raise EvidenceError(
                    "it is signed with another key than that of this node: if the member has a new "
                    "one, `fedif federation rekey`"
                )
        except (EvidenceError, ValueError) as error:
            raise ReplyError(f"its signature: {first_error(error)}") from error
        kept_arrays = None
        if self._keeps:
            kept_arrays = arrays
        self.seen[node.node_id] = replace(seen, signed=signed, arrays=kept_arrays)

    def _is_known(self, node_id: int, key: bytes) -> bool:
        """Return whether ``key`` is the key by which a node is known.

        That is the key with which it is registered, or else the key of its first signature. The
        operator may register another key for the node while the run goes on.
        """
        if self._keys.get(node_id) == key:
            return True
        registered = self._registered().get(node_id)
        if node_id not in self._keys or registered == key:
            self._keys[node_id] = registered or key
        return self._keys[node_id] == key

    def _digest_of(self, server_round: int) -> bytes:
        """Return the digest of the model that was sent in a round; empty if that is forgotten."""
        sent = self._sent.get(server_round, b"")
        if not isinstance(sent, bytes):
            sent = record_digest(sent)
            self._sent[server_round] = sent
        return sent

    def why_updates_are_read(self, strategy: RunningStrategy) -> str:
        """Return why clients' updates are read; empty unless signed replies are kept.

        Members may sign masked replies too, so that a masked run is fine if none is kept.
        """
        if not self._keeps:
            return ""
        return super().why_updates_are_read(strategy)

    def on_step(self, step: Step) -> None:
        """Write the signed replies of the members whose updates are part of the step."""
        used_nodes = {node.node_id for node in step.nodes}
        content: dict[str, Any] = {}
        for node_id, seen in self.seen.items():
            if node_id in used_nodes and seen.arrays is not None:
                for name, array in seen.arrays.items():
                    content[f"{seen.node.client_id}/{name}"] = view_array(array)
        if content:
            assert self._strategy is not None  # on_start
            trained = self._strategy.model.layout.trainable
            content[TRAINED] = np.array([spec.name for spec in trained])
            content[TYPES] = np.array([spec.dtype.str for spec in trained])
            buffer = BytesIO()
            np.savez(buffer, **content)
            path = sent_file(self._updates, step.updates.server_round)
            write_atomically(path, buffer.getvalue())

    def on_round(self, report: Round) -> None:
        """Write the round's signatures."""
        rows = []
        for _, seen in sorted(self.seen.items()):
            if seen.signed is not None:
                place = {"round": report.round, "client_id": seen.node.client_id}
                rows.append({**place, **seen.signed.cells()})
        self._add(rows)

    def lines(self, after: int, last_round: int) -> list[dict[str, Any]]:
        """Return the lines of the rounds after ``after``, up to ``last_round``."""
        return [row for row in self._rows if after < row["round"] <= last_round]

    def memory(self, last_round: int) -> dict[str, Any]:  # noqa: ARG002
        """Return whether every reply's digest is taken, which is so if members get receipts."""
        return {"receipts": self._digests}

    def restore(
        self,
        lines: Sequence[Mapping[str, Any]],
        memory: Mapping[str, Any] | None,
        last_round: int,  # noqa: ARG002
    ) -> None:
        """Go on after a checkpoint's lines; nodes are known by the keys of their signatures there.

        Raises
        ------
        ValueError
            If receipts were on before and are off now, or the other way round; or the lines are of
            an earlier version.
        """
        # Records with receipts for some rounds only, or with signatures of heads that are not
        # there, could not be checked.
        if memory and memory.get("receipts", self._digests) != self._digests:
            raise ValueError(f"evidence.receipts = {self._digests}; allowed: as it began")
        if any("attempt" not in line for line in lines):
            raise ValueError("its signatures are of an earlier version, and name no attempt")
        self._rows = [dict(line) for line in lines]
        self._keys = {}
        for line in lines:
            self._keys[int(line["node_id"])] = bytes.fromhex(line["key"])

    def _add(self, rows: list[dict[str, Any]]) -> None:
        if rows and not self._rows:
            self._table.begin()
        self._rows += rows
        if rows:
            self._table.append(rows)


def sent_file(updates: Path, server_round: int) -> Path:
    """Return the path of the file with a round's signed replies."""
    return updates / f"sent-{server_round:06d}.npz"
