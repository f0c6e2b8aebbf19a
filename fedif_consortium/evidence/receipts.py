"""What a member gets of a run's records: the head of their tree, signed, and where its line is.

A leaf is a line of text, ``round,client_id,update,weight,contribution,credited,status``: one for
each member that was asked, round by round. ``update`` is the SHA-256 of the arrays that came; a
member whose earlier update still moves the model has a line with the status ``carried``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedif_consortium.evidence.merkle import MerkleTree, is_in
from fedif_flower.errors import EvidenceError

LEAF = ("round", "client_id", "update", "weight", "contribution", "credited", "status")
CARRIED = "carried"
_KIND = b"fedif-flower head 1\n"


@dataclass(frozen=True)
class SignedHead:
    """The head of a run's tree, and the signature of whoever keeps the records.

    Attributes
    ----------
    run : str
        The run's id.
    size : int
        How many leaves there are.
    root : bytes
        The tree's head.
    key, signature : bytes
        Of Ed25519, 32 and 64 bytes.
    """

    run: str
    size: int
    root: bytes
    key: bytes
    signature: bytes

    @classmethod
    def by(cls, key: Ed25519PrivateKey, run: str, size: int, root: bytes) -> SignedHead:
        """Sign a head."""
        public = key.public_key().public_bytes_raw()
        return cls(run, size, root, public, key.sign(_signed(run, size, root)))

    @classmethod
    def read(cls, run: str, cells: Mapping[str, Any]) -> SignedHead:
        """Return the head that a table, or JSON, has.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it has none.
        """
        values = (bytes.fromhex(cells[name]) for name in ("root", "key", "signature"))
        return cls(run, int(cells["size"]), *values)

    def cells(self) -> dict[str, Any]:
        """Return what a table, or JSON, has of it: all but the run."""
        values = {name: getattr(self, name).hex() for name in ("root", "key", "signature")}
        return {"size": self.size, **values}

    def to_bytes(self) -> bytes:
        """Return what is signed."""
        return _signed(self.run, self.size, self.root)

    def check(self) -> None:
        """Raise EvidenceError unless the key has signed the head."""
        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(self.signature, self.to_bytes())
        except (InvalidSignature, ValueError) as error:
            raise EvidenceError(
                f"the head of {self.size} leaves is not signed by its key"
            ) from error


@dataclass(frozen=True)
class Receipt:
    """A leaf, its number from 0, and its audit path in a tree of ``size`` leaves."""

    leaf: str
    index: int
    path: tuple[bytes, ...]

    def holds(self, head: SignedHead) -> bool:
        """Return whether the leaf is in the tree with this head."""
        return is_in(self.leaf.encode(), self.index, head.size, self.path, head.root)


@dataclass(frozen=True)
class MemberLine:
    """What the records say of a member's part in a round, as texts of a table."""

    client_id: str
    update: str
    weight: str
    status: str


def round_leaves(
    server_round: int, lines: Iterable[MemberLine], attributed: Mapping[str, tuple[str, str]]
) -> list[str]:
    """Return the leaves of a round.

    Parameters
    ----------
    server_round : int
        The round.
    lines : iterable of MemberLine
        The lines of ``clients.csv``, in their order. A member's second one has no contribution.
    attributed : mapping of str to (str, str)
        The contribution of each client and what it is credited with, by id.
    """
    left, leaves = dict(attributed), []
    for line in lines:
        own = left.pop(line.client_id, ("", ""))
        cells = (line.client_id, line.update, line.weight, *own, line.status)
        leaves.append(",".join((str(server_round), *cells)))
    for client_id, own in left.items():
        leaves.append(",".join((str(server_round), client_id, "", "", *own, CARRIED)))
    return leaves


def read_leaf(leaf: str) -> dict[str, str]:
    """Return a leaf's values by column.

    Raises
    ------
    EvidenceError
        If it is no leaf.
    """
    cells = leaf.split(",")
    if len(cells) != len(LEAF) or not (cells[0].isascii() and cells[0].isdigit()):
        raise EvidenceError(f"{leaf[:80]!r} is no line of a receipt")
    return dict(zip(LEAF, cells, strict=True))


class ReceiptTree:
    """The leaves of a run in the order in which they were written, and the heads told of them."""

    def __init__(self) -> None:
        self.leaves: list[str] = []
        self.heads: list[tuple[int, SignedHead]] = []  # With the round after which it was told.
        self.tree = MerkleTree()
        self._of_client: dict[str, list[int]] = {}

    def add(self, leaves: Sequence[str]) -> None:
        """Add a round's leaves."""
        for leaf in leaves:
            client_id = read_leaf(leaf)["client_id"]
            self._of_client.setdefault(client_id, []).append(len(self.leaves))
            self.leaves.append(leaf)
            self.tree.append(leaf.encode())

    def last_of(self, client_id: int, count: int) -> list[Receipt]:
        """Return the receipts of a client's last lines that the last head covers."""
        size = self.heads[-1][1].size if self.heads else 0
        covered = [i for i in self._of_client.get(str(client_id), []) if i < size]
        return [
            Receipt(self.leaves[i], i, tuple(self.tree.audit_path(i, size)))
            for i in covered[-count:]
        ]


def _signed(run: str, size: int, root: bytes) -> bytes:
    return _KIND + json.dumps({"root": root.hex(), "run": run, "size": size}).encode()
