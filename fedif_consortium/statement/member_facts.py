"""The facts about each member that follow from a run's records, before anything is shared out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from fedif_consortium.statement.own_parts import members_alike
from fedif_consortium.statement.records import MemberRound, Reply, RunRecords, by_member
from fedif_consortium.statement.settings import weighs_by_length
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, all_different, called
from fedif_flower.run.completeness import MemberTurns

# Two updates cancel each other if their negated cosine is above this. The highest value measured
# between honest updates is 0.65.
OPPOSED = 0.9
_NEVER_ASKED = MemberTurns(
    client_id=-1,
    partition_id=UNKNOWN_PARTITION,
    name="",
    count=Counter(),
    participation=None,
    revoked_in=None,
    seen="",
    rounds="",
)


@dataclass(frozen=True, kw_only=True)
class MemberFacts:
    """The facts about one member that follow from the records of the rounds that count.

    Attributes
    ----------
    client_id : int
        The member's lasting id.
    partition_id : int
        The part of the data that the member says it holds; -1: unknown.
    name : str
        What pages call the member.
    page : str
        The path of its page below the statement's folder. The number in it is the member's
        position, not its id, because members get to see these paths.
    asked : int
        The number of rounds in which the member was asked.
    taken_part : int
        In how many of them its reply was accepted.
    refused : int
        In how many of them its reply was refused.
    away : int
        In how many of them no reply came, or an error in its place.
    late : int
        How many of the accepted replies came after their round.
    signed : int
        How many of the accepted replies the member signed.
    revoked_in : int, optional
        The round in which it was seen that the operator ended its registration.
    examples : float, optional
        The largest number of examples that it claimed and was believed.
    weight_score : float, optional
        The weight score Omega after its last round.
    refusals : tuple of (str, int)
        Reasons why replies did not count, and how often each occurred.
    by_class : tuple of float
        The contribution by class; empty: contributions are not split by class.
    equal_part : float
        What the contribution would be if everybody with a part in a round's step had contributed
        the same. With server momentum, these include members whose earlier updates are carried on.
    length, weight, borrowed : float
        The length of its updates, its weight, and how much its updates repeat the last global
        steps: means over its rounds, in multiples of what is usual.
    opposed_rounds : int
        The number of rounds in which its update and another member's cancelled each other.
    has_same_part : bool
        Whether its updates have the same own part as another member's.
    is_weighed_by_length : bool
        Whether longer updates had more weight in this run.
    """

    client_id: int
    partition_id: int
    name: str
    page: str
    asked: int
    taken_part: int
    refused: int
    away: int
    late: int
    signed: int
    revoked_in: int | None
    examples: float | None
    weight_score: float | None
    refusals: tuple[tuple[str, int], ...]
    by_class: tuple[float, ...]
    equal_part: float
    length: float
    weight: float
    borrowed: float
    opposed_rounds: int
    has_same_part: bool
    is_weighed_by_length: bool


def member_facts(records: RunRecords, turns: Sequence[MemberTurns]) -> Iterator[MemberFacts]:
    """Yield the facts about each member, in the members' order.

    Parameters
    ----------
    records : RunRecords
        The records of the rounds that count.
    turns : sequence of MemberTurns
        What became of the requests to each member.
    """
    names = labels(records)
    copies = members_alike(records.own_parts)
    is_by_length = weighs_by_length(records.config)
    equal_parts = _equal_parts(records)
    replies_of = by_member(records.replies)
    turns_of = {of_member.client_id: of_member for of_member in turns}
    for number, (client_id, partition_id) in enumerate(records.members.items(), start=1):
        turns_of_member = turns_of.get(client_id, _NEVER_ASKED)
        replies = replies_of[client_id]
        member_rounds = records.rounds_of[client_id]
        updates = _rounds_of_updates(records, client_id, replies)
        yield MemberFacts(
            client_id=client_id,
            partition_id=partition_id,
            name=names[client_id],
            page=f"members/{number:03}.html",
            asked=turns_of_member.count["asked"],
            taken_part=turns_of_member.usable,
            refused=turns_of_member.count["refused"],
            away=turns_of_member.count["missing"],
            late=turns_of_member.count["late"],
            signed=_count_signed(replies, records.signed),
            revoked_in=turns_of_member.revoked_in,
            examples=max(_known([reply.num_examples for reply in replies]), default=None),
            weight_score=_last(_known([reply.weight_score for reply in replies])),
            refusals=tuple(_refusals(replies).most_common()),
            by_class=_by_class(member_rounds),
            equal_part=math.fsum(equal_parts[line.round] for line in member_rounds),
            length=_mean([line.length for line in updates]),
            weight=_mean([line.weight for line in updates]),
            borrowed=_mean([line.borrowed for line in updates]),
            opposed_rounds=len([line for line in updates if line.opposed > OPPOSED]),
            has_same_part=client_id in copies,
            is_weighed_by_length=is_by_length,
        )


def labels(records: RunRecords) -> dict[int, str]:
    """Return what pages call each member, by client id; no two names are the same."""
    names = {}
    for client_id, partition_id in records.members.items():
        registered_name = records.names.get(client_id, "")
        names[client_id] = called(client_id, partition_id, registered_name)
    return all_different(names)


def _equal_parts(records: RunRecords) -> dict[int, float]:
    """Return, by round, what each member with a part in it would contribute if all were equal."""
    members_in = Counter(line.round for line in records.member_rounds)
    return {row.round: row.attributed / max(members_in[row.round], 1) for row in records.rounds}


def _count_signed(replies: Sequence[Reply], signed: Set[tuple[int, int]]) -> int:
    """Return how many accepted replies are signed.

    ``signed`` has the round and the client id of each signed reply.
    """
    accepted = [reply for reply in replies if reply.status == "accepted"]
    return len([reply for reply in accepted if (reply.round, reply.client_id) in signed])


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _last(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return values[-1]


def _mean(values: Sequence[float]) -> float:
    """Return the mean of values; 0 if there are none."""
    return math.fsum(values) / max(len(values), 1)


def _refusals(replies: Sequence[Reply]) -> Counter[str]:
    """Return the reasons why a member's replies did not count, and how often each occurred.

    A reply that came late has two lines. The second one says whether it counted, so the first one
    is passed over.
    """
    came_later = {reply.asked_in for reply in replies if reply.asked_in}
    refusals: Counter[str] = Counter()
    for reply in replies:
        is_first_of_two = reply.status == "late" and reply.round in came_later
        if reply.rejection and not is_first_of_two:
            refusals[reply.rejection] += 1
    return refusals


def _by_class(member_rounds: Sequence[MemberRound]) -> tuple[float, ...]:
    """Return a member's contribution by class; empty if contributions are not split by class."""
    rounds = [line.by_class for line in member_rounds]
    return tuple(math.fsum(values_of_class) for values_of_class in zip(*rounds, strict=True))


def _rounds_of_updates(
    records: RunRecords, client_id: int, replies: Sequence[Reply]
) -> list[MemberRound]:
    """Return a member's rounds to whose steps it sent an update.

    It may have lines of other rounds too: server momentum carries on an earlier update, and a
    round that takes a step back has the figures of that step again.
    """
    rounds = {reply.round for reply in replies if reply.status == "accepted"}
    rounds -= records.taken_back.keys()
    return [line for line in records.rounds_of[client_id] if line.round in rounds]
