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
from collections.abc import Mapping, Sequence
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
from fedif_consortium.statement.member_account import MemberAccount
from fedif_consortium.statement.own_parts import alike
from fedif_consortium.statement.records import RunRecords
from fedif_consortium.statement.settings import PayBy, Ties
from fedif_consortium.statement.shares import (
    NOTHING,
    alike_shares,
    gain_shares,
    left_out_rounds,
    reason_against_shares,
    share_out,
)
from fedif_consortium.statement.verdict import judge
from fedif_flower.messages.client_node import all_different, called
from fedif_flower.run.completeness import Completeness
from fedif_flower.valuation.intervals import MIN_ROUNDS, share_deviations

DECISIVE = 0.5  # Of what all rounds together moved.
OPPOSED = 0.9  # The negated cosine; honest updates were seen at 0.65.


@dataclass(frozen=True)
class Account:
    """A run's gain, in nats of validation loss, and its members', the highest first.

    ``first_round`` is the first of the ``rounds`` that count, but for those ``left_out`` (see
    :func:`left_out_rounds`); ``decisive_round`` is the one that brought more than half of what was
    gained, which is ``decisive``. ``unpaid`` says why nobody has a share; it is empty where shares
    hold. ``nobody_share`` and ``nobody_cents`` lie beyond the bounds: nobody is paid them.
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


class _Settling:
    """The steps of :func:`settle`: lists and arrays are in the order of the records' members."""

    def __init__(self, records: RunRecords, pay_by: PayBy, ties: Ties) -> None:
        self.left_out = left_out_rounds(records.rounds)
        self.records = records.without(self.left_out)
        self.ids = list(self.records.members)
        self.decrease, self.attributed, self.remainder = (
            math.fsum(getattr(row, name) for row in self.records.rounds)
            for name in ("decrease", "attributed", "remainder")
        )
        self._add_up()
        self._share(pay_by)
        self._weigh_luck(pay_by)
        self.paid = alike_shares(self.shares, self.groups if ties == "alike" else ())

    def _add_up(self) -> None:
        """Add up what members contributed, and how often each was asked."""
        column = {client_id: i for i, client_id in enumerate(self.ids)}
        row = {of_round.round: t for t, of_round in enumerate(self.records.rounds)}
        self.by_round = np.zeros((2, len(row), len(column)))  # Contributed, and credited.
        for part in self.records.parts:
            own = self.by_round[:, row[part.round], column[part.client_id]]
            own += part.contribution, part.credited
        self.contributed, self.credited = (
            [math.fsum(own) + 0.0 for own in of.T] for of in self.by_round
        )
        asked = {(reply.client_id, reply.asked_in or reply.round) for reply in self.records.replies}
        draws = Counter(client_id for client_id, number in asked if number in row)
        self.draws = np.array([float(draws[client_id]) for client_id in self.ids])
        self.turns = {turn.client_id: turn for turn in self.records.judged().members}
        self.never_drawn = sorted({*self.records.names, *self.ids} - draws.keys())
        asked_in = {turn.count["asked"] for turn in self.turns.values()}
        self.is_drawn = bool(self.never_drawn) or len(asked_in) > 1
        self.decisive = decisive_row([of_round.attributed for of_round in self.records.rounds])

    def _share(self, pay_by: PayBy) -> None:
        """Share out what was gained; what lies beyond the bounds is nobody's."""
        self.times = np.maximum(self.draws, 1.0)
        over = self.times if pay_by == "draw" else np.ones_like(self.times)
        self.worth, self.gained = (
            [Fraction(value) / int(n) for value, n in zip(of, over, strict=True)]
            for of in (self.credited, self.contributed)
        )
        self.unpaid = reason_against_shares(self.decrease, self.remainder, self.credited)
        self.shares = gain_shares(self.worth, sum(self.gained))
        if self.unpaid:
            self.shares = [NOTHING for _ in self.ids]
        self.nobody = 1 - sum(self.shares, NOTHING) if any(self.shares) else NOTHING

    def _weigh_luck(self, pay_by: PayBy) -> None:
        """Tell how else all this could have come out, and which members are not told apart."""
        sums, means = kinds_of_luck(self.records, list(self.by_round), self.times, self.is_drawn)
        lucks = [luck for luck in (means if pay_by == "draw" else sums) if luck.about != ROUNDS]
        values, gained = (np.array(of, dtype=float) for of in (self.worth, self.gained))
        self.about = " and ".join(luck.about for luck in sums)
        self.places = [1 + int((values > value).sum()) for value in values]
        self.groups = groups(values, told_apart(values, lucks)) if lucks else []
        of_shares = [
            replace(of, contributed=share_deviations(values, gained, of.credited, of.contributed))
            for of in lucks
            if any(self.shares)
        ]
        contributed = np.array(self.contributed)
        self.intervals = between(contributed, sums)
        self.draw_intervals = between(contributed / self.times, means)
        self.share_intervals = between(np.array(self.shares, dtype=float), of_shares, 0.0, 1.0)

    def members(self, cents: Sequence[int | None]) -> tuple[MemberAccount, ...]:
        """Return the account of each member, the highest contribution first."""
        records, names = self.records, labels(self.records)
        counts = Counter(part.round for part in records.parts)
        equal = {row.round: row.attributed / max(counts[row.round], 1) for row in records.rounds}
        others = np.delete(self.by_round[0], self.decisive or 0, axis=0)
        same, found = alike(records.own_parts), []
        for i, (client_id, partition_id) in enumerate(records.members.items()):
            parts = records.parts_of[client_id]
            length, weight, borrowed = (
                math.fsum(getattr(part, name) for part in parts) / max(len(parts), 1)
                for name in ("length", "weight", "borrowed")
            )
            member = MemberAccount(
                client_id=client_id,
                partition_id=partition_id,
                name=names[client_id],
                page=f"members/{i + 1:03}.html",
                **self._came(client_id),
                contribution=self.contributed[i],
                credited=self.credited[i],
                by_class=tuple(map(math.fsum, zip(*(p.by_class for p in parts), strict=True))),
                equal_part=math.fsum(equal[part.round] for part in parts),
                other_rounds=None if self.decisive is None else math.fsum(others[:, i]) + 0.0,
                per_draw=self.contributed[i] / float(self.draws[i]) if self.draws[i] else None,
                length=length,
                weight=weight,
                borrowed=borrowed,
                opposed_rounds=sum(part.opposed > OPPOSED for part in parts),
                has_same_part=client_id in same,
                place=self.places[i],
                alike=next((len(group) - 1 for group in self.groups if i in group), 0),
                own_share=float(self.shares[i]),
                share=float(self.paid[i]),
                cents=cents[i],
                intervals=self.intervals[i],
                draw_intervals=self.draw_intervals[i] if self.draws[i] else (),
                share_intervals=self.share_intervals[i],
            )
            found.append(replace(member, verdict=judge(member)))
        return tuple(sorted(found, key=lambda m: (-m.contribution, m.client_id)))

    def _came(self, client_id: int) -> dict[str, Any]:
        """Return what came of a member's replies."""
        turn = self.turns.get(client_id)
        count: Mapping[str, int] = turn.count if turn else Counter()
        own = self.records.replies_of[client_id]
        used = [reply.round for reply in own if reply.status == "accepted"]
        examples = [reply.num_examples for reply in own if reply.num_examples is not None]
        scores = [reply.weight_score for reply in own if reply.weight_score is not None]
        refusals = Counter(reply.rejection for reply in own if reply.rejection)
        return {
            "asked": count["asked"],
            "taken_part": count["answered"] + count["late"],
            "refused": count["refused"],
            "away": count["missing"],
            "late": count["late"],
            "signed": sum((number, client_id) in self.records.signed for number in used),
            "revoked_in": own[-1].round if own and own[-1].status == "revoked" else None,
            "examples": max(examples, default=None),
            "weight_score": scores[-1] if scores else None,
            "refusals": tuple(refusals.most_common()),
        }


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
    found = _Settling(counted, pay_by, ties)
    cents: Sequence[int | None] = [None] * (len(found.ids) + 1)
    if budget_cents is not None:
        cents = share_out(budget_cents, [*found.paid, found.nobody])
    names, decisive = labels(found.records), found.decisive
    return Account(
        rounds=len(counted.rounds),
        loss_before=counted.losses[0],
        loss_after=counted.losses[-1],
        decrease=found.decrease,
        attributed=found.attributed,
        remainder=found.remainder,
        budget_cents=budget_cents,
        first_round=from_round,
        left_out=found.left_out,
        decisive_round=None if decisive is None else found.records.rounds[decisive].round,
        decisive=0.0 if decisive is None else found.records.rounds[decisive].attributed,
        nobody_share=float(found.nobody),
        nobody_cents=cents[-1],
        unpaid=found.unpaid,
        completeness=records.judged(),
        about=found.about,
        pay_by=pay_by,
        ties=ties,
        is_drawn=found.is_drawn,
        never_drawn=tuple(names.get(i) or records.names[i] for i in found.never_drawn),
        groups=tuple(tuple(found.ids[i] for i in own) for own in found.groups if len(own) > 1),
        names=records.names,
        members=found.members(cents),
    )


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
