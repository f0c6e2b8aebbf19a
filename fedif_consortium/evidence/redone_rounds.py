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
        Its last version; where the later attempt never came to this round, the round that it began
        with.
    client_ids : frozenset of int
        Everybody who has a line in one of its versions.
    """

    number: int
    counted: ToldRound
    client_ids: frozenset[int]


def counted_rounds(chain: RoundChain) -> dict[int, ToldRound]:
    """Return the version of each round that counts: a later attempt takes back what follows it."""
    counted: dict[int, ToldRound] = {}
    for told_round in chain.rounds:
        for number in list(counted):
            if number >= told_round.number:
                del counted[number]
        counted[told_round.number] = told_round
    return counted


def redone_rounds(chain: RoundChain) -> list[Redone]:
    """Return the rounds that were done again, in their order."""
    # What became of each round: its own versions, and what took it back.
    versions = defaultdict[int, list[ToldRound]](list)
    before = 0
    for told_round in chain.rounds:
        # A round that is not behind the one before takes back all from it on.
        last_number = max(told_round.number, before)
        for number in range(told_round.number, last_number + 1):
            versions[number].append(told_round)
        before = told_round.number
    redone = []
    for number, told_rounds in sorted(versions.items()):
        if len(told_rounds) > 1:
            redone.append(Redone(number, told_rounds[-1], _members_of(number, told_rounds)))
    return redone


def _members_of(number: int, versions: Iterable[ToldRound]) -> frozenset[int]:
    """Return everybody who has a line in a version of a round."""
    client_ids: set[int] = set()
    for told_round in versions:
        if told_round.number == number:
            client_ids |= _client_ids(told_round)
    return frozenset(client_ids)


def not_told(
    redone: Iterable[Redone],
    chain: RoundChain,
    held: Sequence[HeldReceipts],
    signed: Signatures,
) -> Mapping[int, set[int]]:
    """Return who has nothing that covers a round that was done again: client ids by round.

    A round is covered by a member's line of it, by a head that came after it and lies beside a line
    of the member's, by the member's own signature that it was asked in the attempt that did it,
    and by a signature that includes such a head.

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
    # What each member signed that it was asked: a reply to it may have come in a later round.
    signed_in: set[tuple[int, int, int]] = set()  # Attempt, round and client id.
    for member in held:
        # Without a line of its own nothing but its own word says whose the heads are.
        if member.client_id is not None:
            heads[member.client_id] = max(heads[member.client_id], member.size)
    for (_, client_id), signed_update in signed.items():
        signed_size = chain.sizes.get(signed_update.head, 0)
        heads[client_id] = max(heads[client_id], signed_size)
        signed_in.add((signed_update.attempt, signed_update.asked_in, client_id))
    missing = defaultdict[int, set[int]](set)
    for again in redone:
        for client_id in again.client_ids:
            is_signed = (again.counted.attempt, again.number, client_id) in signed_in
            if not is_signed and heads[client_id] < again.counted.size:
                missing[again.number].add(client_id)
    return missing


def _client_ids(told_round: ToldRound) -> set[int]:
    """Return who has a leaf in a round."""
    client_ids = set()
    for leaf in told_round.own.values():
        client_id = read_leaf(leaf)["client_id"]
        if client_id:  # Nobody's leaf has none.
            client_ids.add(int(client_id))
    return client_ids
