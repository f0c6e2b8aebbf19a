r"""The records of a run as a hash chain of rounds, and the receipts that members get of it.

A round has a *leaf* for each member that was asked: a line of text,
``round,client_id,update,weight,contribution,credited,status``. ``update`` is the SHA-256 of the
arrays that the member sent. A member that has no line in ``clients.csv``, but whose earlier update
still moves the model, has a leaf with the status ``carried``. A round without any leaf gets one
with the status ``nobody``.

.. math:: d_t = H(1 \,\|\, a_n \,\|\, t \,\|\, R_t \,\|\, O_t \,\|\, S_t \,\|\, L_t), \qquad
          c_t = H(2 \,\|\, c_{t-1} \,\|\, d_t)

.. math:: L_t = H(4 \,\|\, h(l_1) \,\|\, \dots \,\|\, h(l_m)), \qquad h(l) = H(0 \,\|\, l)

with H = SHA-256 and :math:`c_0 = H(\text{empty})`. :math:`l_1, \dots, l_m` are the leaves of round
t, :math:`d_t` is the hash of the round, and :math:`c_t` is the *head* after it, which the server
signs. :math:`a_n` stands for the run and the attempt
(:mod:`~fedif_consortium.evidence.attempts`). :math:`R_t`, :math:`O_t` and :math:`S_t` are hashes of
what a statement reads beside the leaves (:mod:`~fedif_consortium.evidence.bound_rows`).

A member gets the head of each round. For a round in which it has leaves, it also gets these leaves
and the hashes of all leaves of the round. So it can tell whether an earlier line was changed,
without learning the lines of other members.
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
BEGINNING = hashlib.sha256().digest()  # c_0: the head before the first round.
RECEIPTS_RECORD = "receipts"  # The record of a message with receipts.
MOST_ROUNDS = 1000  # In one message.
_MOST_TEXT = 2**24  # The most characters of one message's rounds, as JSON.
_BETWEEN = ", "  # Separates the values of a list in JSON.
# A round's number and six cells of printable ASCII without commas.
Leaf = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}(,[ -+\--~]*){6}$", max_length=300)]


class ToldRound(Signed):
    """A round of the chain, with the head after it, as the server signs it and tells it to members.

    Attributes
    ----------
    number : int
        The round's number.
    size : int
        The number of leaves in the chain up to this round, this round included.
    root : bytes
        The head: the end of the chain after this round, c_t.
    start : int
        The number of leaves in the chain before this round.
    before : bytes
        The end of the chain before this round, c_(t-1).
    rows, origin, state : bytes
        R_t, O_t and S_t: the hashes of the round's rows in the run's tables, of settings and
        provenance, and of the tables whose rows have no round.
    leaves : bytes
        L_t: the hash of all leaves of the round.
    hashes : tuple of bytes
        The hash of each leaf of the round; empty if no leaf is this member's.
    own : dict of int to str
        Leaves in clear, by their place among the round's leaves. The server has all of them, a
        member only its own.
    """

    kind = "head"
    signs = (*TERMS, "number", "size", "root", "rows", "origin", "state")

    number: Annotated[int, Field(ge=1, le=2**31)]
    size: Annotated[int, Field(ge=0, le=2**53)]
    root: Hex
    start: Annotated[int, Field(ge=0)]
    before: Hex
    rows: Hex
    origin: Hex
    state: Hex
    leaves: Hex
    hashes: tuple[Hex, ...]
    own: dict[int, Leaf]

    @property
    def digest(self) -> bytes:
        """The round's hash, d_t."""
        number = self.number.to_bytes(8)
        parts = (self.end(self.run), number, self.rows, self.origin, self.state, self.leaves)
        return hashlib.sha256(b"\x01" + b"".join(parts)).digest()

    def check(self) -> None:
        """Raise EvidenceError unless the head is signed and follows from the round's leaves."""
        super().check()
        if next_root(self.before, self.digest) != self.root:
            raise self._does_not_follow()
        if self.hashes:  # A member that has no leaf in the round gets no hashes.
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
        """Return whether a leaf belongs to this round, and its hash stands at its place."""
        if not 0 <= place < len(self.hashes):
            return False
        if self.hashes[place] != leaf_hash(leaf):
            return False
        return leaf.startswith(f"{self.number},")

    def for_member(self, client_id: int) -> ToldRound:
        """Return the round as one member gets it: with its own leaves alone in clear."""
        start = f"{self.number},{client_id},"
        leaves = {place: leaf for place, leaf in self.own.items() if leaf.startswith(start)}
        hashes: tuple[bytes, ...] = ()
        if leaves:
            hashes = self.hashes
        return self.model_copy(update={"hashes": hashes, "own": leaves})

    def numbered(self) -> list[tuple[int, str]]:
        """Return the leaves in ``own``, each with its number among all leaves of the run."""
        return [(self.start + place, leaf) for place, leaf in self.own.items()]


_TOLD = TypeAdapter(Annotated[list[ToldRound], Field(min_length=1, max_length=MOST_ROUNDS)])


def read_receipts(content: RecordDict) -> list[ToldRound]:
    """Return the rounds in a message's receipts; an empty list if it has no receipts.

    Whether the rounds are signed and follow from each other is not checked.

    Raises
    ------
    EvidenceError
        If the receipts are malformed, longer than 2**24 characters, or of no round or of more than
        1,000 rounds.
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
    """Return the hash of a leaf, h(l)."""
    return hashlib.sha256(b"\x00" + leaf.encode()).digest()


def leaves_hash(hashes: Sequence[bytes]) -> bytes:
    """Return the hash of all leaves of a round, L_t, by the hashes of the single leaves."""
    return hashlib.sha256(b"\x04" + b"".join(hashes)).digest()


def next_root(before: bytes, digest: bytes) -> bytes:
    """Return the head after a round, c_t.

    Parameters
    ----------
    before : bytes
        The head before the round, c_(t-1).
    digest : bytes
        The round's hash, d_t.
    """
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
        Client id, update, weight and status of each line of ``clients.csv``, in its order. If a
        client has two lines, the first one gets its contribution.
    attributed : mapping of str to (str, str)
        Each client's contribution and credit, by client id.
    """
    left = dict(attributed)
    leaves = []
    for client_id, update, weight, status in lines:
        contribution, credited = left.pop(client_id, ("", ""))
        leaves.append((client_id, update, weight, contribution, credited, status))
    # Clients that are left sent nothing in this round: an earlier update of theirs still counts.
    for client_id, (contribution, credited) in left.items():
        leaves.append((client_id, "", "", contribution, credited, CARRIED))
    if not leaves:
        leaves.append(("", "", "", "", "", NOBODY))
    return [",".join((str(server_round), *cells)) for cells in leaves]


def read_leaf(leaf: str) -> dict[str, str]:
    """Return a leaf's values by the columns in :data:`LEAF`.

    Raises
    ------
    ValueError
        If the leaf has fewer or more values than there are columns.
    """
    return dict(zip(LEAF, leaf.split(","), strict=True))


def why_it_cannot_follow(before: ToldRound | None, later: ToldRound) -> str:
    """Return why the round ``later`` cannot come next after ``before``; empty if it can.

    ``before`` is ``None`` at the beginning of the chain. Within an attempt, round numbers rise by
    one, and settings and provenance stay as they are. So a member that signs any head of an attempt
    has signed the settings and the provenance of its last head. A later attempt may begin anew, or
    go on after any round that was done, so that it does later rounds again.
    """
    if before is None:
        if later.number == 1:
            return ""
        return f"the first round of the records is round {later.number}; it has to be round 1"
    if (later.run, later.name) != (before.run, before.name):
        return f"round {later.number} is of another run than round {before.number}"
    if later.attempt == before.attempt:
        if later.number != before.number + 1 or later.terms() != before.terms():
            return (
                f"round {later.number} stands behind round {before.number} of the same attempt, "
                f"{later.attempt}"
            )
        if later.origin != before.origin:
            return (
                f"round {later.number} has other settings, or another provenance, than round "
                f"{before.number} of the same attempt, {later.attempt}"
            )
    elif later.attempt < before.attempt:
        return f"attempt {later.attempt} stands behind attempt {before.attempt}"
    elif later.number > before.number + 1:
        return f"attempt {later.attempt} goes on with round {later.number}, after {before.number}"
    return ""


class RoundChain:
    """The chain of a run's rounds, in the order in which they were written.

    Attributes
    ----------
    rounds : list of ToldRound
        The rounds, with all their leaves. A round that was done again is there more than once.
    sizes : dict of bytes to int
        For each head that the chain ever had, the number of leaves up to it.
    root : bytes
        The present head.
    """

    def __init__(self) -> None:
        self.rounds: list[ToldRound] = []
        self.sizes: dict[bytes, int] = {BEGINNING: 0}
        self.root = BEGINNING

    def next(self, leaves: Sequence[str], **about: Any) -> dict[str, Any]:
        """Return the attributes of the :class:`ToldRound` that would come next, without signature.

        Parameters
        ----------
        leaves : sequence of str
            The round's leaves.
        **about
            Its attributes ``run``, ``number``, ``rows``, ``origin`` and ``state``, and
            the fields of :class:`~fedif_consortium.evidence.attempts.AgreedRun`.
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
        # Without validation: key, signature and root are not there yet.
        unsigned = ToldRound.model_construct(**{**NOT_COUNTED.terms(), **values})
        return {**values, "root": next_root(self.root, unsigned.digest)}

    def add(self, told_round: ToldRound) -> None:
        """Add a round; the chain's head is computed from it, whatever ``told_round.root`` says."""
        self.root = next_root(told_round.before, told_round.digest)
        self.sizes[self.root] = told_round.start + len(told_round.hashes)
        self.rounds.append(told_round)

    def receipts_for(self, client_id: int, seen: bytes) -> dict[str, ConfigRecord]:
        """Return a client's receipts for the rounds after a head, as records of a message.

        If there are more than 1,000 such rounds, or they do not fit into one message, the earliest
        ones are left out.

        Parameters
        ----------
        client_id : int
            The client.
        seen : bytes
            The last head that the client signed. If the chain never had it, or it is empty, all
            rounds count as new.

        Returns
        -------
        dict of str to ConfigRecord
            One record; empty if there are no new rounds.
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
