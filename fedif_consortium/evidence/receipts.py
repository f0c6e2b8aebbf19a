r"""The records of a run as a chain of rounds, and what a member gets of it.

A leaf is a line of text, ``round,client_id,update,weight,contribution,credited,status``: one for
each member that was asked, round by round. ``update`` is the SHA-256 of the arrays that came; a
member whose earlier update still moves the model has a line with the status ``carried``, and a
round in which nobody was asked one with the status ``nobody``.

.. math:: d_t = H(1 \,\|\, a_n \,\|\, t \,\|\, R_t \,\|\, S_t \,\|\, L_t), \qquad
          c_t = H(2 \,\|\, c_{t-1} \,\|\, d_t)

.. math:: L_t = H(4 \,\|\, h(l_1) \,\|\, \dots \,\|\, h(l_m)), \qquad h(l) = H(0 \,\|\, l)

with SHA-256 and :math:`c_0 = H(\text{empty})`. :math:`a_n` names the run and the attempt
(:mod:`~fedif_consortium.evidence.attempts`), :math:`R_t` and :math:`S_t` are hashes of the very
rows that a statement reads (:mod:`~fedif_consortium.evidence.bound_rows`). A member knows its own
leaves, the hashes of the others' in the same round, and :math:`c_t`, which the server signs: who
knows it sees whether any earlier line was changed, and learns nobody else's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from flwr.app import ConfigRecord, RecordDict
from pydantic import Field, StringConstraints, TypeAdapter

from fedif_consortium.evidence.attempts import NOT_COUNTED, Hex
from fedif_consortium.evidence.signed import TERMS, Signed
from fedif_flower.errors import EvidenceError
from fedif_flower.foreign import parse_json, refused_as

LEAF = ("round", "client_id", "update", "weight", "contribution", "credited", "status")
CARRIED = "carried"
NOBODY = "nobody"
BEGINNING = hashlib.sha256().digest()  # Before the first round.
RECEIPTS_RECORD = "receipts"  # In a message.
MOST_ROUNDS = 1000  # In a message.
_MOST_TEXT = 2**24  # Of a message's rounds, as JSON.
_BETWEEN = ", "  # Two values of a list in JSON.
Leaf = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}(,[ -+\--~]*){6}$", max_length=300)]


class ToldRound(Signed):
    """A round of the chain, and the head after it, signed by whoever keeps the records.

    Attributes
    ----------
    number : int
        The round's.
    size, root : int, bytes
        How many leaves there are after it, and the chain's last hash: the head.
    start, before : int, bytes
        How many leaves there were before, and the chain's end then.
    rows, state : bytes
        Hashes of the round's rows in the run's tables, and of what is of the run as a whole.
    leaves : bytes
        The hash of its leaves.
    hashes : tuple of bytes
        Those of its leaves; none where no leaf is the member's.
    own : mapping of int to str
        Leaves by their place among them: the server has all, a member its own.
    """

    kind = "head"
    signs = (*TERMS, "number", "size", "root", "rows", "state")

    number: Annotated[int, Field(ge=1, le=2**31)]
    size: Annotated[int, Field(ge=0, le=2**53)]
    root: Hex
    start: Annotated[int, Field(ge=0)]
    before: Hex
    rows: Hex
    state: Hex
    leaves: Hex
    hashes: tuple[Hex, ...]
    own: dict[int, Leaf]

    @property
    def digest(self) -> bytes:
        """The round's hash."""
        number = self.number.to_bytes(8)
        parts = (self.end(self.run), number, self.rows, self.state, self.leaves)
        return hashlib.sha256(b"\x01" + b"".join(parts)).digest()

    def check(self) -> None:
        """Raise EvidenceError unless the head is signed, and the leaves lead to it."""
        super().check()
        if next_root(self.before, self.digest) != self.root:
            raise self._does_not_follow()
        if self.hashes:  # A member without a leaf of its own gets none.
            if self.start + len(self.hashes) != self.size:
                raise self._does_not_follow()
            if leaves_hash(self.hashes) != self.leaves:
                raise self._does_not_follow()
        for place, leaf in self.own.items():
            if not self._has_leaf(place, leaf):
                raise EvidenceError(f"this node's line is not in the records: {leaf[:80]!r}")

    def _does_not_follow(self) -> EvidenceError:
        return EvidenceError(f"the head of {self.size} leaves does not follow from them")

    def _has_leaf(self, place: int, leaf: str) -> bool:
        """Tell whether a leaf is of this round, and its hash stands at its place."""
        if not 0 <= place < len(self.hashes):
            return False
        if self.hashes[place] != leaf_hash(leaf):
            return False
        return leaf.startswith(f"{self.number},")

    def for_member(self, client_id: int) -> ToldRound:
        """Return what one member gets of it."""
        start = f"{self.number},{client_id},"
        leaves = {place: leaf for place, leaf in self.own.items() if leaf.startswith(start)}
        hashes: tuple[bytes, ...] = ()
        if leaves:
            hashes = self.hashes
        return self.model_copy(update={"hashes": hashes, "own": leaves})

    def numbered(self) -> list[tuple[int, str]]:
        """Return the leaves that are known, with their numbers among all leaves of the run."""
        return [(self.start + place, leaf) for place, leaf in self.own.items()]


_TOLD = TypeAdapter(Annotated[list[ToldRound], Field(min_length=1, max_length=MOST_ROUNDS)])


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
    with refused_as(EvidenceError, "what the server told of its records is unreadable"):
        run = record["run"]
        text = record["rounds"]
        if not isinstance(text, str) or len(text) > _MOST_TEXT:
            raise ValueError("rounds")
        rounds = [{**cells, "run": run} for cells in parse_json(text)]
        return _TOLD.validate_python(rounds)


def leaf_hash(leaf: str) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(b"\x00" + leaf.encode()).digest()


def leaves_hash(hashes: Sequence[bytes]) -> bytes:
    """Return the hash of a round's leaves from those of each."""
    return hashlib.sha256(b"\x04" + b"".join(hashes)).digest()


def next_root(before: bytes, digest: bytes) -> bytes:
    """Return the chain's end after a round with this hash."""
    return hashlib.sha256(b"\x02" + before + digest).digest()


def round_leaves(
    server_round: int,
    lines: Iterable[tuple[str, str, str, str]],
    attributed: Mapping[str, tuple[str, str]],
) -> list[str]:
    """Return the leaves of a round.

    Parameters
    ----------
    server_round : int
        The round.
    lines : iterable of (str, str, str, str)
        Client id, update, weight and status as ``clients.csv`` has them, in its order. A member's
        second line has no contribution.
    attributed : mapping of str to (str, str)
        The contribution of each client and what it is credited with, by id.
    """
    left = dict(attributed)
    leaves = []
    for client_id, update, weight, status in lines:
        contribution, credited = left.pop(client_id, ("", ""))
        leaves.append((client_id, update, weight, contribution, credited, status))
    # Whoever has no line sent nothing in this round: an earlier update still moves the model.
    for client_id, (contribution, credited) in left.items():
        leaves.append((client_id, "", "", contribution, credited, CARRIED))
    if not leaves:
        leaves.append(("", "", "", "", "", NOBODY))
    return [",".join((str(server_round), *cells)) for cells in leaves]


def read_leaf(leaf: str) -> dict[str, str]:
    """Return a leaf's values by column.

    Raises
    ------
    ValueError
        If it has another number of them.
    """
    return dict(zip(LEAF, leaf.split(","), strict=True))


def why_it_cannot_follow(before: ToldRound | None, later: ToldRound) -> str:
    """Return why a round cannot stand behind another one in a chain; empty: it can.

    Rounds of an attempt are 1, 2, 3 ...; a later attempt goes on after one that was done.
    """
    if before is None:
        if later.number == 1:
            return ""
        return f"the first round of the records is round {later.number}"
    if (later.run, later.name) != (before.run, before.name):
        return f"round {later.number} is of another run than round {before.number}"
    if later.attempt == before.attempt:
        if later.number != before.number + 1 or later.terms() != before.terms():
            return (
                f"round {later.number} stands behind round {before.number} of the same attempt, "
                f"{later.attempt}"
            )
    elif later.attempt < before.attempt:
        return f"attempt {later.attempt} stands behind attempt {before.attempt}"
    elif later.number > before.number + 1:
        return f"attempt {later.attempt} goes on with round {later.number}, after {before.number}"
    return ""


class RoundChain:
    """The rounds of a run that have leaves, in the order in which they were written.

    Attributes
    ----------
    rounds : list of ToldRound
        With all their leaves. A round that was done again is there twice.
    sizes : dict of bytes to int
        How many leaves lead to each end that the chain had, by its hash.
    root : bytes
        Its end.
    """

    def __init__(self) -> None:
        self.rounds: list[ToldRound] = []
        self.sizes: dict[bytes, int] = {BEGINNING: 0}
        self.root = BEGINNING

    def next(self, leaves: Sequence[str], **about: Any) -> dict[str, Any]:
        """Return what a round with these leaves would say, by attribute.

        ``about`` are run, terms, number, rows and state.
        """
        hashes = tuple(map(leaf_hash, leaves))
        start = self.sizes[self.root]
        values = {
            **about,
            "size": start + len(leaves),
            "start": start,
            "before": self.root,
            "leaves": leaves_hash(hashes),
            "hashes": hashes,
            "own": dict(enumerate(leaves)),
        }
        unsigned = ToldRound.model_construct(**{**NOT_COUNTED.terms(), **values})
        return {**values, "root": next_root(self.root, unsigned.digest)}

    def add(self, told_round: ToldRound) -> None:
        """Add a round, whose head may say something else."""
        self.root = next_root(told_round.before, told_round.digest)
        self.sizes[self.root] = told_round.start + len(told_round.hashes)
        self.rounds.append(told_round)

    def receipts_for(self, client_id: int, seen: bytes) -> dict[str, ConfigRecord]:
        """Return what a message brings: rounds after the end that a client has seen, if there are.

        Parameters
        ----------
        client_id : int
            The client.
        seen : bytes
            What it says that it has seen; empty: nothing. It gets at most the last 1,000 rounds,
            and no more of these than it reads in a message.
        """
        size = self.sizes.get(seen, 0)
        rounds = [told_round for told_round in self.rounds if told_round.size > size][-MOST_ROUNDS:]
        texts: list[str] = []  # The latest round first.
        length = 0
        for told_round in reversed(rounds):
            text = json.dumps(told_round.for_member(client_id).cells())
            length += len(text) + len(_BETWEEN)
            if length > _MOST_TEXT:
                break
            texts.append(text)
        if not texts:
            return {}
        list_of_rounds = f"[{_BETWEEN.join(reversed(texts))}]"
        record = ConfigRecord({"run": rounds[0].run, "rounds": list_of_rounds})
        return {RECEIPTS_RECORD: record}
