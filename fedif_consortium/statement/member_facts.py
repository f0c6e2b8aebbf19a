"""What a run's records say of each member by itself, before anything is shared out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from fedif_consortium.statement.own_parts import alike
from fedif_consortium.statement.records import Part, Reply, RunRecords, by_member
from fedif_consortium.statement.settings import weighs_by_length
from fedif_flower.messages.client_node import all_different, called
from fedif_flower.run.completeness import MemberTurns

OPPOSED = 0.9  # The negated cosine; honest updates were seen at 0.65.


def member_facts(records: RunRecords, turns: Sequence[MemberTurns]) -> Iterator[dict[str, Any]]:
    """Yield what is known of each member, by the names that ``MemberAccount`` has for it.

    Parameters
    ----------
    records : RunRecords
        The rounds that count.
    turns : sequence of MemberTurns
        What became of requests to members in these rounds.
    """
    names = labels(records)
    copies = alike(records.own_parts)
    is_by_length = weighs_by_length(records.config)
    equal_parts = _equal_parts(records)
    replies_of = by_member(records.replies)
    turns_of = {turn.client_id: turn for turn in turns}
    for number, (client_id, partition_id) in enumerate(records.members.items(), start=1):
        yield {
            "client_id": client_id,
            "partition_id": partition_id,
            "name": names[client_id],
            "page": f"members/{number:03}.html",
            **_turn_facts(turns_of.get(client_id)),
            **_reply_facts(replies_of[client_id], records.signed),
            **_part_facts(records.parts_of[client_id], equal_parts),
            **_update_facts(_parts_of_updates(records, client_id, replies_of[client_id])),
            "has_same_part": client_id in copies,
            "is_weighed_by_length": is_by_length,
        }


def labels(records: RunRecords) -> dict[int, str]:
    """Return what pages call each member; all different."""
    names = {}
    for client_id, partition_id in records.members.items():
        registered_name = records.names.get(client_id, "")
        names[client_id] = called(client_id, partition_id, registered_name)
    return all_different(names)


def _equal_parts(records: RunRecords) -> dict[int, float]:
    """Return by round what each with a part in its step would get if all got the same of it."""
    members_in = Counter(part.round for part in records.parts)
    return {row.round: row.attributed / max(members_in[row.round], 1) for row in records.rounds}


def _turn_facts(turn: MemberTurns | None) -> dict[str, int | None]:
    """Return what became of the requests to a member, which may never have had a turn."""
    if turn is None:
        none = dict.fromkeys(("asked", "taken_part", "refused", "away", "late"), 0)
        return {**none, "revoked_in": None}
    return {
        "asked": turn.count["asked"],
        "taken_part": turn.usable,
        "refused": turn.count["refused"],
        "away": turn.count["missing"],
        "late": turn.count["late"],
        "revoked_in": turn.revoked_in,
    }


def _reply_facts(replies: Sequence[Reply], signed: Set[tuple[int, int]]) -> dict[str, Any]:
    """Return what a member's replies say of it; ``signed``: round and client id of signed ones."""
    accepted = [reply for reply in replies if reply.status == "accepted"]
    signed_replies = [reply for reply in accepted if (reply.round, reply.client_id) in signed]
    examples = [reply.num_examples for reply in replies if reply.num_examples is not None]
    scores = [reply.weight_score for reply in replies if reply.weight_score is not None]
    return {
        "signed": len(signed_replies),
        "examples": max(examples, default=None),
        "weight_score": scores[-1] if scores else None,
        "refusals": tuple(_refusals(replies).most_common()),
    }


def _refusals(replies: Sequence[Reply]) -> Counter[str]:
    """Return why a member's replies did not count, and how often.

    One that came late has two lines. The later one says whether it counted.
    """
    came_later = {reply.asked_in for reply in replies if reply.asked_in}
    refusals: Counter[str] = Counter()
    for reply in replies:
        is_first_of_two = reply.status == "late" and reply.round in came_later
        if reply.rejection and not is_first_of_two:
            refusals[reply.rejection] += 1
    return refusals


def _part_facts(parts: Sequence[Part], equal_parts: Mapping[int, float]) -> dict[str, Any]:
    """Return what a member's parts of rounds are like, over all of its rounds."""
    by_class = zip(*(part.by_class for part in parts), strict=True)
    return {
        "by_class": tuple(map(math.fsum, by_class)),
        "equal_part": math.fsum(equal_parts[part.round] for part in parts),
    }


def _parts_of_updates(records: RunRecords, client_id: int, replies: Sequence[Reply]) -> list[Part]:
    """Return a member's parts of the rounds to whose steps it sent an update.

    In others momentum carries on an earlier one, or a step is taken back, with its figures again.
    """
    rounds = {reply.round for reply in replies if reply.status == "accepted"}
    rounds -= records.taken_back.keys()
    return [part for part in records.parts_of[client_id] if part.round in rounds]


def _update_facts(parts: Sequence[Part]) -> dict[str, Any]:
    """Return how a member's updates compare with what is usual, by its parts with an update."""
    opposed = [part.round for part in parts if part.opposed > OPPOSED]
    facts: dict[str, Any] = {"opposed_rounds": len(opposed)}
    for name in ("length", "weight", "borrowed"):
        facts[name] = math.fsum(getattr(part, name) for part in parts) / max(len(parts), 1)
    return facts
