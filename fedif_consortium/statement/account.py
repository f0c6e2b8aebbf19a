r"""What each member contributed over a run, and what it is due: numbers in, numbers out.

A member's contribution is the sum of its rounds' contributions in nats of validation loss. It is
credited with what of it lies within bounds (:mod:`fedif_flower.attribution.credit`). Its share of
what was gained is

.. math:: s_i = \frac{\max(\hat c_i, 0)}{\max\big(\sum_j \max(\hat c_j, 0), \sum_j c_j\big)}

with :math:`c_i` the contributions and :math:`\hat c_i \le c_i` what is credited of them, so that a
negative one is shown as such and paid 0. What the model gained beyond all credits is paid to
nobody. The sum of positive contributions would be no better whole: two members whose updates cancel
could raise it at will, and take everybody's pay. Rounds whose remainders keep the contributions
from adding up are left out and named, each with its whole event: a harm and the recovery from it
both count, or neither (see :func:`~fedif_consortium.statement.shares.left_out_rounds`). A run that
ends with no lower loss than it began with gives no shares, nor does one of which no round is left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from fedif_consortium.statement.luck import (
    EXAMPLES,
    ROUNDS,
    between,
    groups,
    kinds_of_luck,
    told_apart,
)
from fedif_consortium.statement.member_account import MemberAccount, judged
from fedif_consortium.statement.own_parts import alike
from fedif_consortium.statement.records import RunRecords, by_member
from fedif_consortium.statement.settings import PayBy, Ties, weighs_by_length
from fedif_consortium.statement.shares import (
    NOTHING,
    alike_shares,
    fall_of,
    gain_shares,
    left_out_rounds,
    reason_against_shares,
    share_out,
)
from fedif_flower.attribution.intervals import MIN_ROUNDS, share_deviations
from fedif_flower.messages.client_node import all_different, called
from fedif_flower.run.completeness import Completeness, MemberTurns

DECISIVE = 0.5  # Of what all rounds together moved.
OPPOSED = 0.9  # The negated cosine; honest updates were seen at 0.65.


@dataclass(frozen=True)
class Account:
    """A run's gain, in nats of validation loss, and its members', the highest first.

    ``first_round`` is the first of the ``rounds`` that count, but for those ``left_out`` (see
    :func:`left_out_rounds`). ``decrease`` is by how much the loss fell between the ends of the run;
    it is the sum of what is ``attributed``, the ``remainder``, and ``left_out_decrease``, by which
    the rounds left out lowered the loss on balance. ``decisive_round`` is the one that brought more
    than half of what was gained, which is ``decisive``. ``unpaid`` says why nobody has a share; it
    is empty where shares hold. ``nobody_share`` and ``nobody_cents`` lie beyond the bounds: nobody
    is paid them.
    ``completeness`` is that of the whole run, whichever rounds count. ``about`` names what the
    intervals are about; empty: there are none. ``is_drawn`` says whether some members were asked
    in fewer rounds than others, ``never_drawn`` who was in none. ``groups`` are the client ids of
    those who are not told apart, see :mod:`~fedif_consortium.statement.luck`. ``names`` are what
    the operator calls members, by client id.
    """

    rounds: int
    loss_before: float
    loss_after: float
    decrease: float
    attributed: float
    remainder: float
    left_out_decrease: float
    budget_cents: int | None
    first_round: int
    left_out: tuple[int, ...]
    decisive_round: int | None
    decisive: float
    nobody_share: float
    nobody_cents: int | None
    unpaid: str
    completeness: Completeness
    about: str
    pay_by: PayBy
    ties: Ties
    is_drawn: bool
    never_drawn: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    names: Mapping[int, str]
    members: tuple[MemberAccount, ...]

    @property
    def last_round(self) -> int:
        """The last of the rounds that count."""
        return self.first_round + self.rounds - 1

    @property
    def widest_share(self) -> float | None:
        """Half the width of the widest interval of a share, with another held-out set."""
        ends = [(m.own_share, m.share_intervals[0]) for m in self.members if m.share_intervals]
        widths = [max(own.high - share, share - own.low) for share, own in ends]
        is_known = ends and ends[0][1].about == EXAMPLES
        return max(widths) if is_known else None


def settle(
    records: RunRecords,
    budget_cents: int | None = None,
    pay_by: PayBy = "sum",
    ties: Ties = "apart",
    from_round: int = 1,
) -> Account:
    """Return the account of a run.

    Parameters
    ----------
    records : RunRecords
        What the run left.
    budget_cents : int, optional
        What is shared out, in cents, >= 0; ``None``: nothing is.
    pay_by : {"sum", "draw"}
        Whether shares are of credits, or of their means over the rounds a member was asked in.
    ties : {"apart", "alike"}
        Whether members that are not told apart share equally what is theirs together.
    from_round : int
        The rounds before this one count for nothing.

    Raises
    ------
    ConfigError
        If there is no such round.
    """
    counted = records.since(from_round)
    left_out = left_out_rounds(counted.rounds)
    used, ids = counted.without(left_out), list(records.members)
    counted_decrease = math.fsum(row.decrease for row in used.rounds)
    attributed = math.fsum(row.attributed for row in used.rounds)
    remainder = math.fsum(row.remainder for row in used.rounds)
    # Between the ends of the run, whichever rounds count.
    decrease = counted.losses[0] - counted.losses[-1]
    left_out_decrease = decrease - counted_decrease if left_out else 0.0
    draws, turns = _draws(used), used.judged().members
    contributed, credited = ([math.fsum(own) + 0.0 for own in of.T] for of in used.by_round)
    decisive = decisive_row([row.attributed for row in used.rounds])
    never_drawn = sorted({*used.names, *ids} - draws.keys())
    is_drawn = bool(never_drawn) or len({turn.count["asked"] for turn in turns}) > 1

    # What was gained is shared out; what lies beyond the bounds is nobody's.
    times = [max(draws[client_id], 1) for client_id in ids]
    worth, gained = (
        [
            Fraction(value) / (n if pay_by == "draw" else 1)
            for value, n in zip(of, times, strict=True)
        ]
        for of in (credited, contributed)
    )
    fall = fall_of(counted.rounds)
    unpaid = reason_against_shares(fall, counted_decrease, remainder, credited)
    shares = [NOTHING for _ in ids] if unpaid else gain_shares(worth, sum(gained))
    nobody = 1 - sum(shares, NOTHING) if any(shares) else NOTHING

    # How else all this could have come out, and which members are not told apart.
    of_sums = kinds_of_luck(used, is_drawn)
    of_means = kinds_of_luck(used, is_drawn, np.array(times, dtype=float))
    lucks = [luck for luck in (of_means if pay_by == "draw" else of_sums) if luck.about != ROUNDS]
    values, whole = (np.array(of, dtype=float) for of in (worth, gained))
    of_shares = [
        replace(of, contributed=share_deviations(values, whole, of.credited, of.contributed))
        for of in lucks
        if any(shares)
    ]
    tied = groups(values, told_apart(values, lucks)) if lucks else []
    paid = alike_shares(shares, tied if ties == "alike" else ())
    cents: Sequence[int | None] = [None] * (len(ids) + 1)
    if budget_cents is not None:
        cents = share_out(budget_cents, [*paid, nobody])

    means = np.array(contributed) / times
    others = np.delete(used.by_round[0], decisive or 0, axis=0).T
    per_draw = between(means, of_means)
    columns: dict[str, Sequence[Any]] = {
        "contribution": contributed,
        "credited": credited,
        "left_out_harm": _left_out_harm(counted, left_out, fall),
        "other_rounds": [None if decisive is None else math.fsum(own) + 0.0 for own in others],
        "per_draw": [float(mean) if draws[i] else None for i, mean in zip(ids, means, strict=True)],
        "place": [1 + int((values > value).sum()) for value in values],
        "alike": [next((len(own) - 1 for own in tied if i in own), 0) for i in range(len(ids))],
        "own_share": list(map(float, shares)),
        "share": list(map(float, paid)),
        "cents": cents,
        "intervals": between(np.array(contributed), of_sums),
        "draw_intervals": [own if draws[i] else () for i, own in zip(ids, per_draw, strict=True)],
        "share_intervals": between(np.array(shares, dtype=float), of_shares, 0.0, 1.0),
    }
    known = _known(used, turns)
    members = [
        judged(MemberAccount(**own, **{name: of[i] for name, of in columns.items()}))
        for i, own in enumerate(known)
    ]
    names = labels(records)
    return Account(
        rounds=len(counted.rounds),
        loss_before=counted.losses[0],
        loss_after=counted.losses[-1],
        decrease=decrease,
        attributed=attributed,
        remainder=remainder,
        left_out_decrease=left_out_decrease,
        budget_cents=budget_cents,
        first_round=from_round,
        left_out=left_out,
        decisive_round=None if decisive is None else used.rounds[decisive].round,
        decisive=0.0 if decisive is None else used.rounds[decisive].attributed,
        nobody_share=float(nobody),
        nobody_cents=cents[-1],
        unpaid=unpaid,
        completeness=records.judged(),
        about=" and ".join(luck.about for luck in of_sums),
        pay_by=pay_by,
        ties=ties,
        is_drawn=is_drawn,
        never_drawn=tuple(names.get(i) or records.names[i] for i in never_drawn),
        groups=tuple(tuple(ids[i] for i in own) for own in tied if len(own) > 1),
        names=records.names,
        members=tuple(sorted(members, key=lambda m: (-m.contribution, m.client_id))),
    )


def _left_out_harm(records: RunRecords, left_out: Collection[int], fall: float) -> list[float]:
    """Return by how much each member raised the loss in rounds left out, in falls of the run."""
    if not left_out:
        return [0.0 for _ in records.members]
    is_out = np.array([row.round in left_out for row in records.rounds])
    contributed, _ = records.by_round
    sums = [math.fsum(own) for own in contributed[is_out].T]
    return [max(-value, 0.0) / fall for value in sums]


def _draws(records: RunRecords) -> Counter[int]:
    """Return in how many of the rounds each member was asked, by client id."""
    numbers = {row.round for row in records.rounds}
    asked = {(reply.client_id, reply.asked_in or reply.round) for reply in records.replies}
    return Counter(client_id for client_id, number in asked if number in numbers)


def _known(records: RunRecords, turns: Sequence[MemberTurns]) -> Iterator[dict[str, Any]]:
    """Yield what the records say of each member by itself."""
    names, same = labels(records), alike(records.own_parts)
    is_by_length = weighs_by_length(records.config)
    counts = Counter(part.round for part in records.parts)
    equal = {row.round: row.attributed / max(counts[row.round], 1) for row in records.rounds}
    replies_of = by_member(records.replies)
    came = {turn.client_id: turn for turn in turns}
    for number, (client_id, partition_id) in enumerate(records.members.items(), start=1):
        parts, replies = records.parts_of[client_id], replies_of[client_id]
        turn = came.get(client_id)
        count = turn.count if turn else Counter[str]()
        accepted = [reply.round for reply in replies if reply.status == "accepted"]
        examples = [reply.num_examples for reply in replies if reply.num_examples is not None]
        scores = [reply.weight_score for reply in replies if reply.weight_score is not None]
        refusals = Counter(reply.rejection for reply in replies if reply.rejection)
        yield {
            "client_id": client_id,
            "partition_id": partition_id,
            "name": names[client_id],
            "page": f"members/{number:03}.html",
            "asked": count["asked"],
            "taken_part": turn.usable if turn else 0,
            "refused": count["refused"],
            "away": count["missing"],
            "late": count["late"],
            "signed": sum((number, client_id) in records.signed for number in accepted),
            "revoked_in": replies[-1].round
            if replies and replies[-1].status == "revoked"
            else None,
            "examples": max(examples, default=None),
            "weight_score": scores[-1] if scores else None,
            "refusals": tuple(refusals.most_common()),
            "by_class": tuple(map(math.fsum, zip(*(p.by_class for p in parts), strict=True))),
            "equal_part": math.fsum(equal[part.round] for part in parts),
            **{
                name: math.fsum(getattr(part, name) for part in parts) / max(len(parts), 1)
                for name in ("length", "weight", "borrowed")
            },
            "opposed_rounds": sum(part.opposed > OPPOSED for part in parts),
            "has_same_part": client_id in same,
            "is_weighed_by_length": is_by_length,
        }


def decisive_row(attributed: Sequence[float]) -> int | None:
    """Return which round gained more than all others together moved the loss, from 0.

    ``None``: no round did, or there are fewer than 5.
    """
    if len(attributed) < MIN_ROUNDS:
        return None
    most = max(range(len(attributed)), key=attributed.__getitem__)
    return most if attributed[most] > DECISIVE * math.fsum(map(abs, attributed)) else None


def labels(records: RunRecords) -> dict[int, str]:
    """Return what pages call each member; all different."""
    return all_different(
        {i: called(i, held, records.names.get(i, "")) for i, held in records.members.items()}
    )
