"""A member's receipts on their way: with the next message, and with the statement at the end."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from fedif_flower.errors import EvidenceError
from fedif_flower.evidence.merkle import HASH_BYTES
from fedif_flower.evidence.receipts import Receipt, ReceiptTree, SignedHead

RECEIPTS_RECORD, SEEN_RECORD = "receipts", "seen-head"
MOST_RECEIPTS = 16  # In a message.
_MOST_HASHES = 128  # Of a path or a proof: trees of more than 2**60 leaves have more.
_MOST_LETTERS = 300  # Of a leaf.
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
                "leaves": [receipt.leaf for receipt in self.receipts],
                "indices": [receipt.index for receipt in self.receipts],
                "paths": [b"".join(receipt.path) for receipt in self.receipts],
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
        run, size, since = record["run"], record["size"], record["since"]
        leaves, indices, paths = record["leaves"], record["indices"], record["paths"]
        if not (isinstance(run, str) and _is_count(size) and _is_count(since)):
            raise ValueError("run or sizes")
        if not len(leaves) == len(indices) == len(paths) <= MOST_RECEIPTS:  # type: ignore[arg-type]
            raise ValueError("receipts")
        head = SignedHead(run, size, *(_bytes(record[k]) for k in ("root", "key", "signature")))  # type: ignore[arg-type]
        receipts = tuple(
            Receipt(_leaf(leaf), int(index), _hashes(path))
            for leaf, index, path in zip(leaves, indices, paths, strict=True)  # type: ignore[arg-type]
        )
        return Receipts(head, since, _hashes(record["proof"]), receipts)  # type: ignore[arg-type]
    except (KeyError, ValueError, TypeError) as error:
        raise EvidenceError(
            f"what the server told of its records is unreadable: {error}"
        ) from error


def seen_size(content: RecordDict) -> int:
    """Return the size of the head that a reply's sender says it saw last; 0: none."""
    record = content.get(SEEN_RECORD)
    size = record.get("size") if isinstance(record, ConfigRecord) else None
    return size if _is_count(size) else 0  # type: ignore[return-value]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_LEAVES


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
