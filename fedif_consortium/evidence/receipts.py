r"""The records of a run as a chain of rounds, and what a member gets of it.

A leaf is a line of text, ``round,client_id,update,weight,contribution,credited,status``: one for
each member that was asked, round by round. ``update`` is the SHA-256 of the arrays that came; a
member whose earlier update still moves the model has a line with the status ``carried``.

.. math:: d_t = H(1 \,\|\, h(l_1) \,\|\, \dots \,\|\, h(l_m)), \qquad
          c_t = H(2 \,\|\, c_{t-1} \,\|\, d_t), \qquad h(l) = H(0 \,\|\, l)

with SHA-256 and :math:`c_0 = H(\text{empty})`. A member knows its own leaves, the hashes of the
others' in the same round, and :math:`c_t`, which the server signs: who knows it sees whether any
earlier line was changed, and learns nobody else's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedif_flower.errors import EvidenceError

LEAF = ("round", "client_id", "update", "weight", "contribution", "credited", "status")
CARRIED = "carried"
BEGINNING = hashlib.sha256().digest()  # Before the first round.
_KIND = b"fedif-flower head 2\n"


@dataclass(frozen=True)
class SignedHead:
    """The end of a run's chain after a round, signed by whoever keeps the records.

    Attributes
    ----------
    run : str
        The run's id.
    size : int
        How many leaves there are.
    root : bytes
        The chain's last hash.
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
        unsigned = cls(run, size, root, key.public_key().public_bytes_raw(), b"")
        return cls(run, size, root, unsigned.key, key.sign(unsigned.to_bytes()))

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
        content = {"root": self.root.hex(), "run": self.run, "size": self.size}
        return _KIND + json.dumps(content).encode()

    def check(self) -> None:
        """Raise EvidenceError unless the key has signed the head."""
        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(self.signature, self.to_bytes())
        except (InvalidSignature, ValueError) as error:
            raise EvidenceError(
                f"the head of {self.size} leaves is not signed by its key"
            ) from error


@dataclass(frozen=True)
class ToldRound:
    """A round of the chain as one member gets it.

    Attributes
    ----------
    head : SignedHead
        The chain's end after the round.
    start, before : int, bytes
        How many leaves there were before, and the chain's end then.
    digest : bytes
        The round's hash.
    hashes : tuple of bytes
        Those of its leaves; none where no leaf is the member's.
    own : mapping of int to str
        The member's leaves by their place among them.
    """

    head: SignedHead
    start: int
    before: bytes
    digest: bytes
    hashes: tuple[bytes, ...]
    own: Mapping[int, str]

    @classmethod
    def read(cls, run: str, cells: Mapping[str, Any]) -> ToldRound:
        """Return the round that JSON has.

        Raises
        ------
        ValueError, KeyError, TypeError, AttributeError
            If it has none.
        """
        return cls(
            SignedHead.read(run, cells),
            int(cells["start"]),
            bytes.fromhex(cells["before"]),
            bytes.fromhex(cells["digest"]),
            tuple(bytes.fromhex(one) for one in cells["hashes"]),
            {int(place): str(leaf) for place, leaf in cells["own"].items()},
        )

    def cells(self) -> dict[str, Any]:
        """Return what JSON has of it: all but the run."""
        return {
            **self.head.cells(),
            "start": self.start,
            "before": self.before.hex(),
            "digest": self.digest.hex(),
            "hashes": [one.hex() for one in self.hashes],
            "own": {str(place): leaf for place, leaf in self.own.items()},
        }

    def check(self) -> None:
        """Raise EvidenceError unless the head is signed, and the leaves lead to it."""
        self.head.check()
        is_chained = next_root(self.before, self.digest) == self.head.root
        has_all = round_hash(self.hashes) == self.digest and (
            self.start + len(self.hashes) == self.head.size
        )
        if not is_chained or (self.hashes and not has_all):
            raise EvidenceError(f"the head of {self.head.size} leaves does not follow from them")
        for place, leaf in self.own.items():
            if not 0 <= place < len(self.hashes) or self.hashes[place] != leaf_hash(leaf):
                raise EvidenceError(f"this node's line is not in the records: {leaf[:80]!r}")

    def numbered(self) -> list[tuple[int, str]]:
        """Return the member's leaves, with their numbers among all leaves of the run."""
        return [(self.start + place, leaf) for place, leaf in self.own.items()]


@dataclass(frozen=True)
class MemberLine:
    """What the records say of a member's part in a round, as texts of a table."""

    client_id: str
    update: str
    weight: str
    status: str


def leaf_hash(leaf: str) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(b"\x00" + leaf.encode()).digest()


def round_hash(hashes: Sequence[bytes]) -> bytes:
    """Return the hash of a round from those of its leaves."""
    return hashlib.sha256(b"\x01" + b"".join(hashes)).digest()


def next_root(before: bytes, digest: bytes) -> bytes:
    """Return the chain's end after a round with this hash."""
    return hashlib.sha256(b"\x02" + before + digest).digest()


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


class RoundChain:
    """The leaves of a run in the order in which they were written, and the heads told of them.

    Attributes
    ----------
    leaves : list of str
        All of them.
    heads : list of (int, SignedHead)
        With the round after which each was told. Nobody has checked them.
    sizes : dict of bytes to int
        How many leaves lead to each end that the chain had.
    """

    def __init__(self) -> None:
        self.leaves: list[str] = []
        self.heads: list[tuple[int, SignedHead]] = []
        self.sizes: dict[bytes, int] = {BEGINNING: 0}
        self.root = BEGINNING
        # Of each leaf, once: every member of a round is told of all.
        self._hashes: list[bytes] = []
        self._owners: list[str] = []

    def add(self, leaves: Sequence[str]) -> bytes:
        """Add a round's leaves; return the chain's end. A round without any changes nothing."""
        if leaves:
            hashes = [leaf_hash(leaf) for leaf in leaves]
            owners = [read_leaf(leaf)["client_id"] for leaf in leaves]
            self.leaves += leaves
            self._hashes += hashes
            self._owners += owners
            self.root = next_root(self.root, round_hash(hashes))
            self.sizes[self.root] = len(self.leaves)
        return self.root

    def told(self, client_id: int, seen: bytes, at_most: int) -> list[ToldRound]:
        """Return the rounds after the end that a client has seen.

        Parameters
        ----------
        client_id : int
            The client.
        seen : bytes
            What it says that it has seen; empty: nothing.
        at_most : int
            How many rounds, the last ones, > 0.
        """
        new, start, before = [], 0, BEGINNING
        for _, head in self.heads:
            if head.size > max(start, self.sizes.get(seen, 0)):
                new.append((head, start, before))
            start, before = head.size, head.root
        return [self._told(*each, str(client_id)) for each in new[-at_most:]]

    def _told(self, head: SignedHead, start: int, before: bytes, client_id: str) -> ToldRound:
        hashes = tuple(self._hashes[start : head.size])
        places = [i for i in range(start, head.size) if self._owners[i] == client_id]
        own = {i - start: self.leaves[i] for i in places}
        return ToldRound(head, start, before, round_hash(hashes), hashes if own else (), own)
