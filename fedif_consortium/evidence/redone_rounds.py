"""Rounds that a run did again after it was resumed; they count only if their members know of it.

Otherwise the operator could append all rounds once more, with other figures, and claim that the
run was resumed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedif_consortium.evidence.held_receipts import HeldReceipts
from fedif_consortium.evidence.receipts import RoundChain, ToldRound, read_leaf
from fedif_consortium.evidence.signed import Signatures


@dataclass(frozen=True)
class Redone:
    """A round that a later attempt did again, or gave up.

    Attributes
    ----------
    number : int
        The round's number.
    counted : ToldRound
        The round's last version. If the later attempt never reached this round, it is the round
        with which that attempt began.
    client_ids : frozenset of int
        All clients that have a leaf in one of the round's versions.
    """

    number: int
    counted: ToldRound
    client_ids: frozenset[int]


def counted_rounds(chain: RoundChain) -> dict[int, ToldRound]:
    """Return the version of each round that counts, by the round's number.

    A round that is done again takes back all rounds from its number on.
    """
    counted: dict[int, ToldRound] = {}
    for told_round in chain.rounds:
        for number in list(counted):
            if number >= told_round.number:
                del counted[number]
        counted[told_round.number] = told_round
    return counted


def redone_rounds(chain: RoundChain) -> list[Redone]:
    """Return the rounds that were done again or given up, by their numbers."""
    # For each round number, its own versions, and the rounds that took versions back.
    versions = defaultdict[int, list[ToldRound]](list)
    before = 0
    for told_round in chain.rounds:
        # A round whose number does not follow the one before takes back all rounds from it on.
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
    """Return all clients that have a leaf in a version of round ``number``."""
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
    """Return, for each round that was done again, the clients that did not demonstrably know of it.

    A client knew of a round if one of these is there: a receipt of the round's head or of a later
    head, in a folder that also has a leaf of this client; a signed update that includes such a
    head; or a signed update to a request of the round in the attempt that counts.

    Parameters
    ----------
    redone : iterable of Redone
        The rounds that were done again.
    chain : RoundChain
        The run's chain.
    held : sequence of HeldReceipts
        Members' receipts, which agree with the chain.
    signed : mapping of (int, int) to SignedUpdate
        What members signed, by round and client id, with keys that are known to be theirs.

    Returns
    -------
    mapping of int to set of int
        Client ids by round; without rounds that all their clients knew of.
    """
    heads = defaultdict[int, int](int)  # The number of leaves of which each client was told.
    # Attempt, round and client id of each signed request. The reply may be of a later round.
    signed_in: set[tuple[int, int, int]] = set()
    for member in held:
        # Without a leaf, only the member itself says to whom the folder's heads were told.
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
    """Return the clients that have a leaf in a round."""
    client_ids = set()
    for leaf in told_round.own.values():
        client_id = read_leaf(leaf)["client_id"]
        if client_id:  # The leaf of a round in which nobody was asked has no client id.
            client_ids.add(int(client_id))
    return client_ids
