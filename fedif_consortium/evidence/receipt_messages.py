"""A member's receipts on their way: with the next message, and with the statement at the end."""

from __future__ import annotations

import json
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from fedif_consortium.evidence.merkle import HASH_BYTES
from fedif_consortium.evidence.receipts import Receipt, ReceiptTree, SignedHead
from fedif_flower.errors import EvidenceError

RECEIPTS_RECORD, SEEN_RECORD = "receipts", "seen-head"
MOST_RECEIPTS = 16  # In a message.
_MOST_HASHES = 128  # Of a path or a proof: trees of more than 2**60 leaves have more.
_MOST_LETTERS = 300  # Of a leaf.
_MOST_TEXT = MOST_RECEIPTS * 2 * (_MOST_LETTERS + 2 * _MOST_HASHES * HASH_BYTES)
MOST_LEAVES = 2**53


@dataclass(frozen=True)
class Receipts:
    """What a member is told of a run's records.

    Attributes
    ----------
    head : SignedHead
        The last one.
    since : int
        The size of the head that the member saw before; 0: none that the server knows of.
    proof : tuple of bytes
        Shows that the tree begins with the leaves of that one.
    receipts : tuple of Receipt
        The member's own last lines, 16 at most.
    """

    head: SignedHead
    since: int
    proof: tuple[bytes, ...]
    receipts: tuple[Receipt, ...]

    def to_record(self) -> ConfigRecord:
        """Return it as it travels."""
        return ConfigRecord(
            {
                "run": self.head.run,
                "size": self.head.size,
                "root": self.head.root,
                "key": self.head.key,
                "signature": self.head.signature,
                "since": self.since,
                "proof": b"".join(self.proof),
                "lines": json.dumps(
                    [[r.leaf, r.index, b"".join(r.path).hex()] for r in self.receipts]
                ),
            }
        )


def receipts_for(tree: ReceiptTree, client_id: int, seen: int) -> Receipts | None:
    """Return what a client is told, which saw a head of ``seen`` leaves; ``None``: no head yet."""
    if not tree.heads:
        return None
    head = tree.heads[-1][1]
    since = seen if 0 < seen <= head.size else 0
    proof = tree.tree.consistency(since, head.size)
    return Receipts(head, since, tuple(proof), tuple(tree.last_of(client_id, MOST_RECEIPTS)))


def read_receipts(content: RecordDict) -> Receipts | None:
    """Return what a server told of its records; ``None``: nothing.

    Raises
    ------
    EvidenceError
        If it is of other types, or more than it can be.
    """
    record = content.get(RECEIPTS_RECORD)
    if not isinstance(record, ConfigRecord):
        return None
    try:
        run, lines = record["run"], record["lines"]
        if not (isinstance(run, str) and isinstance(lines, str) and len(lines) <= _MOST_TEXT):
            raise ValueError("run or lines")
        root, key, signature = (_bytes(record[name]) for name in ("root", "key", "signature"))
        head = SignedHead(run, _count(record["size"]), root, key, signature)
        receipts = tuple(
            Receipt(_leaf(leaf), _count(index), _hashes(bytes.fromhex(path)))
            for leaf, index, path in json.loads(lines)
        )
        if len(receipts) > MOST_RECEIPTS:
            raise ValueError(f"{len(receipts)} lines")
        return Receipts(head, _count(record["since"]), _hashes(record["proof"]), receipts)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise EvidenceError(
            f"what the server told of its records is unreadable: {error}"
        ) from error


def seen_size(content: RecordDict) -> int:
    """Return the size of the head that a reply's sender says it saw last; 0: none."""
    record = content.get(SEEN_RECORD)
    try:
        return _count(record["size"]) if isinstance(record, ConfigRecord) else 0
    except (KeyError, ValueError):
        return 0


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MOST_LEAVES:
        raise ValueError("a number of lines")
    return value


def _leaf(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MOST_LETTERS:
        raise ValueError("a line")
    return value


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) > 2 * HASH_BYTES:
        raise ValueError("the head")
    return value


def _hashes(value: object) -> tuple[bytes, ...]:
    if not isinstance(value, bytes) or len(value) % HASH_BYTES:
        raise ValueError("a proof")
    if len(value) > _MOST_HASHES * HASH_BYTES:
        raise ValueError("a proof that is too long")
    return tuple(value[i : i + HASH_BYTES] for i in range(0, len(value), HASH_BYTES))
