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
from typing import Annotated, Any, NamedTuple, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from flwr.app import ConfigRecord, RecordDict
from pydantic import Field, StringConstraints, TypeAdapter, model_validator

from fedif_consortium.evidence.cells import Hex, Signed
from fedif_flower.errors import EvidenceError
from fedif_flower.foreign import parse_json

LEAF = ("round", "client_id", "update", "weight", "contribution", "credited", "status")
CARRIED = "carried"
BEGINNING = hashlib.sha256().digest()  # Before the first round.
RECEIPTS_RECORD = "receipts"  # In a message.
MOST_ROUNDS = 1000  # In a message.
_MOST_TEXT = 2**24
_KIND = b"fedif-flower head 2\n"
Leaf = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}(,[^,\n]*){6}$", max_length=300)]


class SignedHead(Signed):
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

    size: Annotated[int, Field(ge=0, le=2**53)]
    root: Hex

    @classmethod
    def by(cls, key: Ed25519PrivateKey, run: str, size: int, root: bytes) -> Self:
        """Sign a head."""
        raw = key.public_key().public_bytes_raw()
        unsigned = cls(run=run, size=size, root=root, key=raw, signature=b"")
        return unsigned.model_copy(update={"signature": key.sign(unsigned.to_bytes())})

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


class ToldRound(SignedHead):
    """A round of the chain as one member gets it, and the head after it.

    Attributes
    ----------
    start, before : int, bytes
        How many leaves there were before, and the chain's end then.
    digest : bytes
        The round's hash.
    hashes : tuple of bytes
        Those of its leaves; none where no leaf is the member's.
    own : mapping of int to str
        The member's leaves by their place among them.
    """

    start: Annotated[int, Field(ge=0)]
    before: Hex
    digest: Hex
    hashes: tuple[Hex, ...]
    own: dict[int, Leaf]

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.start >= self.size:
            raise ValueError("it has no leaves")
        return self

    def check(self) -> None:
        """Raise EvidenceError unless the head is signed, and the leaves lead to it."""
        super().check()
        is_chained = next_root(self.before, self.digest) == self.root
        has_all = round_hash(self.hashes) == self.digest and (
            self.start + len(self.hashes) == self.size
        )
        if not is_chained or (self.hashes and not has_all):
            raise EvidenceError(f"the head of {self.size} leaves does not follow from them")
        for place, leaf in self.own.items():
            if not 0 <= place < len(self.hashes) or self.hashes[place] != leaf_hash(leaf):
                raise EvidenceError(f"this node's line is not in the records: {leaf[:80]!r}")

    def numbered(self) -> list[tuple[int, str]]:
        """Return the member's leaves, with their numbers among all leaves of the run."""
        return [(self.start + place, leaf) for place, leaf in self.own.items()]


_TOLD = TypeAdapter(Annotated[list[ToldRound], Field(min_length=1, max_length=MOST_ROUNDS)])


def to_record(rounds: Sequence[ToldRound]) -> ConfigRecord:
    """Return rounds that follow each other, at least one, as they travel."""
    cells = json.dumps([told.cells() for told in rounds])
    return ConfigRecord({"run": rounds[0].run, "rounds": cells})


def read_receipts(content: RecordDict) -> list[ToldRound]:
    """Return what a server told of its records; empty: nothing.

    Raises
    ------
    EvidenceError
        If it is of other types, more than it can be, or no chain.
    """
    record = content.get(RECEIPTS_RECORD)
    if not isinstance(record, ConfigRecord):
        return []
    try:
        run, text = record["run"], record["rounds"]
        if not (isinstance(text, str) and len(text) <= _MOST_TEXT):
            raise ValueError("rounds")
        return _TOLD.validate_python([{**cells, "run": run} for cells in parse_json(text)])
    except (KeyError, ValueError, TypeError) as error:
        raise EvidenceError(
            f"what the server told of its records is unreadable: {error!r:.200}"
        ) from error


class MemberLine(NamedTuple):
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
    ValueError
        If it has another number of them.
    """
    return dict(zip(LEAF, leaf.split(","), strict=True))


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
            self._owners += [read_leaf(leaf)["client_id"] for leaf in leaves]
            self.leaves += leaves
            self._hashes += hashes
            self.root = next_root(self.root, round_hash(hashes))
            self.sizes[self.root] = len(self.leaves)
        return self.root

    def entries(self) -> list[dict[str, Any]]:
        """Return each head's cells, with its round and the leaves since the head before."""
        starts = [0, *(head.size for _, head in self.heads)]
        return [
            {"round": number, "leaves": self.leaves[start : head.size], **head.cells()}
            for start, (number, head) in zip(starts, self.heads, strict=False)
        ]

    def told(self, client_id: int, seen: bytes) -> list[ToldRound]:
        """Return the rounds after the end that a client has seen, at most the last 1,000.

        Parameters
        ----------
        client_id : int
            The client.
        seen : bytes
            What it says that it has seen; empty: nothing.
        """
        new, start, before = [], 0, BEGINNING
        for _, head in self.heads:
            if head.size > max(start, self.sizes.get(seen, 0)):
                new.append((head, start, before))
            start, before = head.size, head.root
        return [self._told(*each, str(client_id)) for each in new[-MOST_ROUNDS:]]

    def _told(self, head: SignedHead, start: int, before: bytes, client_id: str) -> ToldRound:
        hashes = tuple(self._hashes[start : head.size])
        places = [i for i in range(start, head.size) if self._owners[i] == client_id]
        own = {i - start: self.leaves[i] for i in places}
        digest, shown = round_hash(hashes), hashes if own else ()
        return ToldRound.model_construct(
            **vars(head), start=start, before=before, digest=digest, hashes=shown, own=own
        )
