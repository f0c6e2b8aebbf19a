r"""What each member contributed over a run, and what it is due: numbers in, numbers out.

A member's contribution is the sum of its rounds' contributions in nats of validation loss. It is
credited with what of it lies within bounds (:mod:`fedif_flower.valuation.credit`). Its share of
what was gained is

.. math:: s_i = \frac{\max(\hat c_i, 0)}{\max\big(\sum_j \max(\hat c_j, 0), \sum_j c_j\big)}

with :math:`c_i` the contributions and :math:`\hat c_i \le c_i` what is credited of them, so that a
negative one is shown as such and paid 0. What the model gained beyond all credits is paid to
nobody. The sum of positive contributions would be no better whole: two members whose updates cancel
could raise it at will, and take everybody's pay. Rounds whose remainders keep the contributions
from adding up are left out and named. A run that lowered the loss by nothing gives no shares, nor
does one of which no round is left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.statement.luck import (
    EXAMPLES,
    ROUNDS,
    Between,
    between,
    groups,
    kinds_of_luck,
    told_apart,
)
from fedif_consortium.statement.own_parts import alike
from fedif_consortium.statement.records import Part, Reply, RunRecords
from fedif_consortium.statement.settings import PayBy, Ties
from fedif_consortium.statement.shares import (
    NOTHING,
    alike_shares,
    gain_shares,
    left_out_rounds,
    reason_against_shares,
    share_out,
    withheld_shares,
)
from fedif_consortium.statement.verdict import OPPOSED, Beyond, Facts, Verdict, judge
from fedif_flower.messages.client_node import all_different, called
from fedif_flower.run.completeness import Completeness
from fedif_flower.valuation.intervals import MIN_ROUNDS, share_deviations

DECISIVE = 0.5  # Of what all rounds together moved.


@dataclass(frozen=True)
class MemberAccount:
    """One member over the whole run.

    Attributes
    ----------
    client_id, partition_id : int
        Its lasting id, and the part of the data that it says it holds (-1: unknown).
    name : str
        What pages call it.
    asked, taken_part, refused, away, signed : int
        Rounds: in all, with an accepted reply, with a refused one, without any; and with an
        accepted reply that it signed.
    late : int
        Of those that it took part in: with a reply that came after the round.
    revoked_in : int, optional
        The round in which the operator ended its registration.
    examples : float, optional
        The most examples it claimed and was believed.
    contribution : float
        In nats of validation loss; negative: it raised the loss.
    equal_part : float
        What it would be if each round's were shared equally among those who took part.
    intervals : tuple of Between
        Its 95 % intervals, one for each kind of luck; the last is about all of them.
    per_draw : float, optional
        The contribution over the number of rounds in which it was asked.
    draw_intervals, share_intervals : tuple of Between
        The same of that mean, and of the share, in [0, 1].
    place : int
        Its place among all by what its share is of.
    places : (int, int), optional
        The places that luck leaves open.
    alike : int
        How many others its group has, from whom it is not told apart.
    other_rounds : float, optional
        The contribution without the decisive round, where there is one.
    by_class : tuple of float
        The same in each class's loss, where that was attributed.
    credited : float
        What of the contribution lies within the bounds; at most the contribution.
    share : float
        Of what was gained, in [0, 1].
    own_share : float
        What that was before those who are not told apart were paid alike; its intervals are of it.
    cents : int, optional
        Its part of the budget.
    withheld : float
        What more its share would be without bounds, in [0, 1]; it is paid to nobody.
    weight_score : float, optional
        Omega after its last round.
    refusals : tuple of (str, int)
        Why replies were refused, and how often.
    verdict : Verdict
        Accept, review or quarantine, and why.
    """

    client_id: int
    partition_id: int
    name: str
    asked: int
    taken_part: int
    refused: int
    away: int
    late: int
    signed: int
    revoked_in: int | None
    examples: float | None
    contribution: float
    equal_part: float
    intervals: tuple[Between, ...]
    per_draw: float | None
    draw_intervals: tuple[Between, ...]
    share_intervals: tuple[Between, ...]
    place: int
    places: tuple[int, int] | None
    alike: int
    other_rounds: float | None
    by_class: tuple[float, ...]
    credited: float
    share: float
    own_share: float
    cents: int | None
    withheld: float
    weight_score: float | None
    refusals: tuple[tuple[str, int], ...]
    verdict: Verdict

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the contribution about every kind of luck."""
        return (self.intervals[-1].low, self.intervals[-1].high) if self.intervals else None

    @property
    def may_be_nothing(self) -> bool:
        """Whether the interval of what it contributed includes 0."""
        ends = self.interval
        return ends is not None and self.contribution != 0 and ends[0] <= 0 <= ends[1]


@dataclass(frozen=True)
class Account:
    """A run's gain, in nats of validation loss, and its members', the highest first.

    ``first_round`` is the first of the ``rounds`` that count, but for those ``left_out`` (see
    :func:`left_out_rounds`); ``decisive_round`` is the one that
    brought more than half of what was gained, which is ``decisive``. ``unpaid`` says why nobody
    has a share; it is empty where shares hold. ``uncredited`` is what of the contributions lies
    beyond the bounds, ``nobody_share`` and ``nobody_cents`` what is paid to nobody.
    ``completeness`` is that of the whole run, whichever rounds count. ``about`` names what the
    intervals are about; empty: there are none. ``is_drawn`` says whether some members were asked
    in fewer rounds than others, ``never_drawn`` who was in none. ``groups`` are the client ids of
    those who are not told apart, see :mod:`~fedif_consortium.statement.luck`.
    """

    rounds: int
    loss_before: float
    loss_after: float
    decrease: float
    attributed: float
    remainder: float
    budget_cents: int | None
    first_round: int = 1
    left_out: tuple[int, ...] = ()
    decisive_round: int | None = None
    decisive: float = 0.0
    uncredited: float = 0.0
    nobody_share: float = 0.0
    nobody_cents: int | None = None
    unpaid: str = ""
    completeness: Completeness | None = None
    about: str = ""
    pay_by: PayBy = "sum"
    ties: Ties = "apart"
    is_drawn: bool = False
    never_drawn: tuple[str, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    members: tuple[MemberAccount, ...] = field(default_factory=tuple)

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

    @property
    def has_signatures(self) -> bool:
        """Whether any member signed an update."""
        return any(member.signed for member in self.members)


def settle(
    records: RunRecords,
    budget_cents: int | None = None,
    pay_by: PayBy = "sum",
    ties: Ties = "apart",
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
    """
    whole, left_out = records, left_out_rounds(records.rounds)
    records = records.without(left_out)
    rounds, ids = records.rounds, list(records.members)
    per_round, credited = by_round(records)  # [T, n] each
    totals, credits = ([math.fsum(own) + 0.0 for own in of.T] for of in (per_round, credited))
    decisive = decisive_row([row.attributed for row in rounds])
    decrease = math.fsum(row.decrease for row in rounds)
    remainder = math.fsum(row.remainder for row in rounds)
    draws, names = times_drawn(records), labels(records)
    turns = {turn.client_id: turn for turn in records.judged().members}
    never = [i for i in {**records.names, **records.members} if not draws.get(i)]
    asked = [turn.asked for turn in turns.values()]
    is_drawn = bool(never) or min(asked, default=0) < max(asked, default=0)

    times = np.array([max(draws[i], 1.0) for i in ids])
    over = times if pay_by == "draw" else np.ones_like(times)
    paid, gained = (
        [Fraction(value) / int(n) for value, n in zip(of, over, strict=True)]
        for of in (credits, totals)
    )
    unpaid = reason_against_shares(decrease, remainder, credits)
    own_shares = [NOTHING if unpaid else s for s in gain_shares(paid, sum(gained, NOTHING))]
    is_paid = any(own_shares)
    withheld = withheld_shares(gained, paid) if is_paid else [NOTHING] * len(ids)
    nobody = 1 - sum(own_shares, NOTHING) if is_paid else NOTHING

    kinds = kinds_of_luck(records, per_round, credited, times, is_drawn)
    lucks = [kind for kind in kinds[int(pay_by == "draw")] if kind.about != ROUNDS]
    values, sums = np.array([float(value) for value in paid]), np.array(totals)
    apart = told_apart(values, lucks)
    together = groups(values, apart) if lucks else []
    shares = alike_shares(own_shares, together if ties == "alike" else ())
    intervals, of_draws = between(sums, kinds[0]), between(sums / times, kinds[1])
    of_shares = [
        replace(
            kind,
            contributed=share_deviations(values, sums / over, kind.credited, kind.contributed),
        )
        for kind in lucks
        if is_paid
    ]
    share_intervals = between(np.array([float(share) for share in own_shares]), of_shares)
    cents: list[int] | list[None] = [None] * (len(ids) + 1)
    if budget_cents is not None:
        cents = share_out(budget_cents, [*shares, nobody])
    equal, same = equal_parts(records), alike(records.own_parts)
    replies: dict[int, list[Reply]] = {client_id: [] for client_id in ids}
    for reply in records.replies:
        replies[reply.client_id].append(reply)
    members = []
    for i, (client_id, partition_id) in enumerate(records.members.items()):
        own, parts, turn = replies[client_id], records.parts_of[client_id], turns.get(client_id)
        times_asked = draws[client_id]
        facts = Facts(
            contribution=totals[i],
            equal_part=equal[client_id],
            interval=(intervals[i][-1].low, intervals[i][-1].high) if intervals[i] else None,
            taken_part=turn.usable if turn else 0,
            refused=turn.refused if turn else 0,
            has_same_part=client_id in same,
            uncredited=totals[i] - credits[i],
            usual=beyond(parts),
        )
        member = MemberAccount(
            client_id=client_id,
            partition_id=partition_id,
            name=names[client_id],
            asked=turn.asked if turn else 0,
            taken_part=facts.taken_part,
            refused=facts.refused,
            away=turn.missing if turn else 0,
            late=turn.late if turn else 0,
            signed=sum(
                r.status == "accepted" and (r.round, client_id) in records.signed for r in own
            ),
            revoked_in=own[-1].round if own and own[-1].status == "revoked" else None,
            examples=max((r.num_examples for r in own if r.num_examples is not None), default=None),
            contribution=totals[i],
            equal_part=facts.equal_part,
            intervals=intervals[i],
            per_draw=totals[i] / times_asked if times_asked else None,
            draw_intervals=of_draws[i] if times_asked else (),
            share_intervals=tuple(
                Between(e.about, max(e.low, 0.0), min(e.high, 1.0)) for e in share_intervals[i]
            ),
            place=1 + int((values > values[i]).sum()),
            places=(
                1 + int((apart[i] & (values > values[i])).sum()),
                len(ids) - int((apart[i] & (values < values[i])).sum()),
            )
            if lucks
            else None,
            alike=next((len(group) - 1 for group in together if i in group), 0),
            other_rounds=None
            if decisive is None
            else math.fsum(np.delete(per_round[:, i], decisive)) + 0.0,
            by_class=tuple(map(math.fsum, zip(*(p.by_class for p in parts), strict=True))),
            credited=credits[i],
            share=float(shares[i]),
            own_share=float(own_shares[i]),
            cents=cents[i],
            withheld=float(withheld[i]),
            weight_score=next(
                (r.weight_score for r in reversed(own) if r.weight_score is not None), None
            ),
            refusals=tuple(Counter(r.rejection for r in own if r.rejection).most_common()),
            verdict=judge(facts),
        )
        members.append(member)
    return Account(
        rounds=len(whole.rounds),
        loss_before=whole.losses[0],
        loss_after=whole.losses[-1],
        decrease=decrease,
        attributed=math.fsum(row.attributed for row in rounds),
        remainder=remainder,
        budget_cents=budget_cents,
        first_round=whole.rounds[0].round,
        left_out=left_out,
        decisive_round=None if decisive is None else rounds[decisive].round,
        decisive=0.0 if decisive is None else rounds[decisive].attributed,
        uncredited=math.fsum(totals) - math.fsum(credits),
        nobody_share=float(nobody),
        nobody_cents=cents[-1],
        unpaid=unpaid,
        completeness=records.completeness,
        about=" and ".join(kind.about for kind in kinds[0]),
        pay_by=pay_by,
        ties=ties,
        is_drawn=is_drawn,
        never_drawn=tuple(names.get(i) or records.names[i] for i in sorted(never)),
        groups=tuple(tuple(ids[i] for i in group) for group in together if len(group) > 1),
        members=tuple(sorted(members, key=lambda m: (-m.contribution, m.client_id))),
    )


def by_round(records: RunRecords) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what members contributed in each round, and are credited with, ``[T, n]`` each."""
    column = {client_id: i for i, client_id in enumerate(records.members)}
    row = {of_round.round: t for t, of_round in enumerate(records.rounds)}
    values = np.zeros((2, len(row), len(column)))
    for part in records.parts:
        values[:, row[part.round], column[part.client_id]] += part.contribution, part.credited
    return values[0], values[1]


def times_drawn(records: RunRecords) -> dict[int, int]:
    """Return in how many of the rounds that count each member was asked, by client id."""
    counted = {row.round for row in records.rounds}
    asked = {(reply.client_id, reply.asked_in or reply.round) for reply in records.replies}
    found = Counter(client_id for client_id, number in asked if number in counted)
    return {client_id: found[client_id] for client_id in records.members}


def decisive_row(attributed: Sequence[float]) -> int | None:
    """Return which round gained more than all others together moved the loss, from 0.

    ``None``: no round did, or there are fewer than 5.
    """
    if len(attributed) < MIN_ROUNDS:
        return None
    most = max(range(len(attributed)), key=attributed.__getitem__)
    return most if attributed[most] > DECISIVE * math.fsum(map(abs, attributed)) else None


def equal_parts(records: RunRecords) -> dict[int, float]:
    """Return each member's contribution if its rounds' were shared equally, by client id."""
    counts = Counter(part.round for part in records.parts)
    equal = {row.round: row.attributed / max(counts[row.round], 1) for row in records.rounds}
    of = records.parts_of
    return {i: math.fsum(equal[part.round] for part in parts) for i, parts in of.items()}


def beyond(parts: Sequence[Part]) -> Beyond:
    """Return how a member's updates compare with what is usual."""
    count = max(len(parts), 1)
    return Beyond(
        length=math.fsum(part.length for part in parts) / count,
        weight=math.fsum(part.weight for part in parts) / count,
        borrowed=math.fsum(part.borrowed for part in parts) / count,
        opposed_rounds=sum(part.opposed > OPPOSED for part in parts),
    )


def labels(records: RunRecords) -> dict[int, str]:
    """Return what pages call each member; all different."""
    return all_different(
        {i: called(i, held, records.names.get(i, "")) for i, held in records.members.items()}
    )
