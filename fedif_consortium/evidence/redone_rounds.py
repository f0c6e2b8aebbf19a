"""Rounds that a run did again after it was resumed: they count if members were told of it.

Otherwise whoever keeps the records could append all rounds once more, with other figures, and say
that the run was resumed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedif_consortium.evidence.check_signatures import Signatures
from fedif_consortium.evidence.held_receipts import HeldReceipts
from fedif_consortium.evidence.receipts import RoundChain, ToldRound, read_leaf


@dataclass(frozen=True)
class Redone:
    """A round that was done again, or given up.

    Attributes
    ----------
    number : int
        Which round.
    counted : ToldRound
        Its last version; that with which the later attempt began, if it never came to this round.
    client_ids : frozenset of int
        Everybody who has a line in one of its versions.
    """

    number: int
    counted: ToldRound
    client_ids: frozenset[int]


def counted_rounds(chain: RoundChain) -> dict[int, ToldRound]:
    """Return the version of each round that counts: a later attempt takes back what follows it."""
    counted: dict[int, ToldRound] = {}
    for told in chain.rounds:
        counted = {number: own for number, own in counted.items() if number < told.number}
        counted[told.number] = told
    return counted


def redone_rounds(chain: RoundChain) -> list[Redone]:
    """Return the rounds that were done again, in their order."""
    last = counted_rounds(chain)
    begun: dict[int, ToldRound] = {}  # By round: where a later attempt took it back.
    members = defaultdict[int, set[int]](set)
    highest = 0
    for told in chain.rounds:
        members[told.number] |= _client_ids(told)
        for number in range(told.number, highest + 1):
            begun[number] = told
        highest = told.number
    return [
        Redone(number, last.get(number, told), frozenset(members[number]))
        for number, told in sorted(begun.items())
    ]


def not_told(
    redone: Iterable[Redone],
    chain: RoundChain,
    held: Sequence[HeldReceipts],
    signed: Signatures,
) -> Mapping[int, set[int]]:
    """Return who has nothing that covers a round that was done again: client ids by round.

    A member's line of the round covers it, a head that came after it, the member's own signature in
    the attempt that did it, and one that includes such a head.

    Parameters
    ----------
    redone : iterable of Redone
        The rounds.
    chain : RoundChain
        The run's.
    held : sequence of HeldReceipts
        What members kept; it is as the chain says.
    signed : mapping
        What members signed with keys that are known to be theirs.
    """
    heads = defaultdict[int, int](int)  # How much of the chain each member was told of.
    for member in held:
        for client_id in member.client_ids:
            heads[client_id] = max(heads[client_id], member.size)
    for (_, client_id), own in signed.items():
        heads[client_id] = max(heads[client_id], chain.sizes.get(own.head, 0))
    missing = defaultdict[int, set[int]](set)
    for again in redone:
        for client_id in again.client_ids:
            update = signed.get((again.number, client_id))
            is_signed = update is not None and update.attempt == again.counted.attempt
            if not is_signed and heads[client_id] < again.counted.size:
                missing[again.number].add(client_id)
    return missing


def _client_ids(told: ToldRound) -> set[int]:
    ids = (read_leaf(leaf)["client_id"] for leaf in told.own.values())
    return {int(client_id) for client_id in ids if client_id}
