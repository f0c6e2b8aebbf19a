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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedif_consortium.statement.class_mix import ClassMix, class_mix, mix_intervals
from fedif_consortium.statement.examined import read_examined
from fedif_consortium.statement.from_round import records_from
from fedif_consortium.statement.held_out import (
    HeldOutAccount,
    Standing,
    judge_held_out,
)
from fedif_consortium.statement.luck import (
    EXAMPLES,
    Between,
    groups,
    told_apart,
)
from fedif_consortium.statement.member_account import MemberAccount, with_verdict
from fedif_consortium.statement.member_facts import labels, member_facts
from fedif_consortium.statement.noise_interval import AtNoiseEnd, at_noise_ends, union
from fedif_consortium.statement.records import RunRecords
from fedif_consortium.statement.settings import PayBy, Ties
from fedif_consortium.statement.shares import (
    NOTHING,
    alike_shares,
    fall_of,
    gain_shares,
    left_out_rounds,
    losses_of,
    reason_against_shares,
    share_out,
)
from fedif_consortium.statement.sums import (
    Draws,
    Lucks,
    Totals,
    column_sums,
    draws_of,
    intervals_of,
    lucks_of,
    totals_of,
)
from fedif_flower.attribution.gain import first_and_last_loss
from fedif_flower.attribution.intervals import MIN_ROUNDS
from fedif_flower.run.completeness import Completeness

DECISIVE = 0.5  # Of what all rounds together moved.


@dataclass(frozen=True)
class Account:
    """A run's gain, in nats of validation loss, and its members', the highest first.

    Attributes
    ----------
    rounds : int
        How many there are from ``first_round`` on, those ``left_out`` included.
    loss_before : float, optional
        The first finite loss; ``None``: there is none.
    loss_after : float, optional
        The one that the run ended with; ``None``: it is not finite.
    decrease : float, optional
        By how much the loss fell between these ends; ``None`` without them. It is the sum of
        ``attributed``, ``remainder`` and ``left_out_decrease``.
    attributed : float
        What the members' contributions add up to.
    remainder : float
        What is nobody's.
    left_out_decrease : float
        By how much the rounds left out lowered the loss on balance.
    budget_cents : int, optional
        What is shared out; ``None``: nothing is.
    first_round : int
        The first round that counts.
    left_out : tuple of int
        Which of these rounds count for nobody (see :func:`left_out_rounds`).
    decisive_round : int, optional
        The one that gained more than all others together moved the loss, where there is one.
    decisive : float
        What it gained; 0 where there is none.
    nobody_share : float
        The share that lies beyond the bounds: nobody is paid it.
    nobody_cents : int, optional
        Its part of the budget.
    unpaid : str
        Why nobody has a share; empty where shares hold.
    completeness : Completeness
        That of the whole run, whichever rounds count.
    about : str
        What the intervals are about; empty: there are none.
    pay_by : {"sum", "draw"}
        What shares are of: sums over rounds, or means per draw.
    ties : {"apart", "alike"}
        Whether members that are not told apart are paid alike.
    is_drawn : bool
        Whether some members were drawn in other rounds than others.
    never_drawn : tuple of str
        Who was drawn in no round.
    groups : tuple of tuple of int
        The client ids of those who are not told apart (see
        :mod:`~fedif_consortium.statement.luck`).
    held_out : HeldOutAccount
        Whether the held-out set is one to pay by.
    mix : ClassMix, optional
        Up to which other mix of its classes shares have intervals, if they have.
    names : mapping of int to str
        What the operator calls members, by client id.
    members : tuple of MemberAccount
        The highest contribution first.
    """

    rounds: int
    loss_before: float | None
    loss_after: float | None
    decrease: float | None
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
    held_out: HeldOutAccount
    mix: ClassMix | None
    names: Mapping[int, str]
    members: tuple[MemberAccount, ...]

    @property
    def last_round(self) -> int:
        """The last of the rounds that count."""
        return self.first_round + self.rounds - 1

    @property
    def widest_share(self) -> float | None:
        """How far a share may lie from its own at most, with another held-out set."""
        widths = []
        for member in self.members:
            if not member.share_intervals:
                continue
            interval = member.share_intervals[0]
            if interval.about != EXAMPLES:
                return None
            widths.append(max(interval.high - member.own_share, member.own_share - interval.low))
        return max(widths, default=None)


@dataclass(frozen=True)
class _Counted:
    """The rounds that count, and what members did in them, in the members' order.

    Attributes
    ----------
    since : RunRecords
        The records from the first round that counts on.
    used : RunRecords
        The same without the rounds ``left_out``.
    left_out : tuple of int
        Rounds whose contributions do not add up.
    pay_by : {"sum", "draw"}
        What shares are of.
    draws, totals, lucks
        How often members were drawn, what they contributed, and how else it could have come out.
    unpaid : str
        Why nobody has a share; empty: shares hold.
    """

    since: RunRecords
    used: RunRecords
    left_out: tuple[int, ...]
    pay_by: PayBy
    draws: Draws
    totals: Totals
    lucks: Lucks
    unpaid: str


@dataclass(frozen=True)
class _Gain:
    """What the model gained, under the names that the account has for it."""

    decrease: float | None
    attributed: float
    remainder: float
    left_out_decrease: float
    decisive_round: int | None
    decisive: float


@dataclass(frozen=True)
class _Shares:
    """Who gets which share of what was gained, in the members' order.

    ``earned`` are the shares before those who are not told apart are paid alike, ``paid`` after it.
    ``cents`` have nobody's at their end; all are ``None`` where there is no budget.
    """

    groups: list[list[int]]
    earned: list[Fraction]
    paid: list[Fraction]
    nobody: Fraction
    cents: Sequence[int | None]


def settle(
    records: RunRecords,
    budget_cents: int | None = None,
    pay_by: PayBy = "sum",
    ties: Ties = "apart",
    from_round: int = 1,
    *,
    accept_held_out: bool = False,
) -> Account:
    """Return the account of a run.

    Parameters
    ----------
    records : RunRecords
        What the run left.
    budget_cents : int, optional
        What is shared out, in cents, >= 0; ``None``: nothing is.
    pay_by : {"sum", "draw"}
        Whether shares are of credits, or of their means over the rounds a member was drawn in.
    ties : {"apart", "alike"}
        Whether members that are not told apart share equally what is theirs together.
    from_round : int
        The rounds before this one count for nothing.
    accept_held_out : bool
        Pay by a held-out set that is not to be paid by; the account says so.

    Raises
    ------
    ConfigError
        If there is no such round, or what the run says of its held-out set cannot be read.
    """
    counted = _count(records, pay_by, from_round)
    shares = _shares(counted, ties, budget_cents)
    noise_ends = _noise_ends(counted)
    standing = _standing(counted, shares, noise_ends)
    mix = class_mix(counted.used)
    intervals_of_mix = mix_intervals(counted.used, standing, mix)
    members = _member_accounts(counted, shares, noise_ends, intervals_of_mix)
    held_out = judge_held_out(records, counted.used, standing, is_accepted=accept_held_out)
    first_loss, last_loss = first_and_last_loss(losses_of(counted.since.rounds))
    return Account(
        **vars(_gain(counted)),
        rounds=len(counted.since.rounds),
        loss_before=first_loss,
        loss_after=last_loss,
        budget_cents=budget_cents,
        first_round=from_round,
        left_out=counted.left_out,
        nobody_share=float(shares.nobody),
        nobody_cents=shares.cents[-1],
        unpaid=counted.unpaid,
        completeness=records.completeness(),
        about=" and ".join(luck.about for luck in counted.lucks.of_sums),
        pay_by=pay_by,
        ties=ties,
        is_drawn=counted.draws.is_drawn,
        never_drawn=_names_of(records, counted.draws.never_drawn),
        groups=_client_ids(records, shares.groups),
        held_out=held_out,
        mix=mix,
        names=records.names,
        members=tuple(sorted(members, key=lambda m: (-m.contribution, m.client_id))),
    )


def _count(records: RunRecords, pay_by: PayBy, from_round: int) -> _Counted:
    """Return the rounds that count, and what members did in them."""
    since = records_from(records, from_round)
    left_out = left_out_rounds(since.rounds, since.taken_back)
    used = since.without(left_out)
    draws = draws_of(used)
    totals = totals_of(used, draws, pay_by)
    fall = fall_of(since.rounds)
    return _Counted(
        since=since,
        used=used,
        left_out=left_out,
        pay_by=pay_by,
        draws=draws,
        totals=totals,
        lucks=lucks_of(used, draws, pay_by),
        unpaid=reason_against_shares(fall, used.rounds, totals.credited),
    )


def _gain(counted: _Counted) -> _Gain:
    """Return what was gained."""
    since = counted.since
    used = counted.used
    # Between the ends of the run, whichever rounds count.
    fall = fall_of(since.rounds)
    decrease: float | None = None
    if math.isfinite(fall):
        decrease = fall
    left_out_decrease = 0.0
    if counted.left_out:  # So there is a fall: without one, no round is left out.
        left_out_decrease = fall - used.decrease
    attributed = [row.attributed for row in used.rounds]
    decisive_round: int | None = None
    decisive = 0.0
    row = decisive_row(attributed)
    if row is not None:
        decisive_round = used.rounds[row].round
        decisive = attributed[row]
    return _Gain(
        decrease=decrease,
        attributed=math.fsum(attributed),
        remainder=used.remainder,
        left_out_decrease=left_out_decrease,
        decisive_round=decisive_round,
        decisive=decisive,
    )


def _shares(counted: _Counted, ties: Ties, budget_cents: int | None) -> _Shares:
    """Share out what was gained; what lies beyond the bounds is nobody's."""
    totals = counted.totals
    lucks = counted.lucks.of_worth
    earned = [NOTHING] * len(totals.worth)
    if not counted.unpaid:
        earned = gain_shares(totals.worth, sum(totals.gained))
    nobody = NOTHING
    if any(earned):
        nobody = 1 - sum(earned, NOTHING)
    tied: list[list[int]] = []
    if lucks and not counted.unpaid:
        values = np.array(totals.worth, dtype=float)
        tied = groups(values, told_apart(values, lucks))
    paid = earned
    if ties == "alike":
        paid = alike_shares(earned, tied)
    cents: Sequence[int | None] = [None] * (len(earned) + 1)
    if budget_cents is not None:
        cents = share_out(budget_cents, [*paid, nobody])
    return _Shares(tied, earned, paid, nobody, cents)


def _noise_ends(counted: _Counted) -> list[AtNoiseEnd]:
    """Return what shares would be at both ends of the share of wrong labels, where that matters."""
    examined = read_examined(counted.used.provenance)
    if counted.unpaid or not examined.is_corrected_within_an_interval:
        return []
    return at_noise_ends(counted.used, counted.draws, counted.pay_by)


def _standing(counted: _Counted, shares: _Shares, noise_ends: Sequence[AtNoiseEnd]) -> Standing:
    """Return who is paid by what, for what could change the order."""
    divisors = [1] * len(counted.draws.counts)
    if counted.pay_by == "draw":
        divisors = counted.draws.divisors
    return Standing(
        client_ids=list(counted.used.members),
        worth=np.array(counted.totals.worth, dtype=float),
        shares=np.array(shares.earned, dtype=float),
        draws=divisors,
        lucks=counted.lucks.of_worth,
        worth_at_noise_ends=[end.worth for end in noise_ends],
    )


def _member_accounts(
    counted: _Counted,
    shares: _Shares,
    noise_ends: Sequence[AtNoiseEnd],
    intervals_of_mix: Sequence[tuple[float, float] | tuple[()]],
) -> list[MemberAccount]:
    """Return what is said of each member, with its verdict, in the members' order."""
    draws = counted.draws
    totals = counted.totals
    all_facts = member_facts(counted.used, counted.used.completeness().members)
    intervals = intervals_of(totals, draws, shares.earned, counted.lucks)
    other_rounds = _other_rounds(counted.used)
    left_out_harm = _left_out_harm(counted.since, counted.left_out)
    places = _places(totals.worth)
    members = []
    for index, facts in enumerate(all_facts):
        per_draw: float | None = None
        draw_intervals: tuple[Between, ...] = ()
        if draws.counts[index] > 0:
            per_draw = totals.contributed[index] / draws.counts[index]
            draw_intervals = intervals.of_means[index]
        member = MemberAccount(
            **vars(facts),
            contribution=totals.contributed[index],
            credited=totals.credited[index],
            left_out_harm=left_out_harm[index],
            other_rounds=other_rounds[index],
            per_draw=per_draw,
            place=places[index],
            alike=_others_in_group(index, shares.groups),
            own_share=float(shares.earned[index]),
            share=float(shares.paid[index]),
            cents=shares.cents[index],
            intervals=intervals.of_sums[index],
            draw_intervals=draw_intervals,
            share_intervals=tuple(union(intervals.of_shares[index], index, noise_ends)),
            noise_shares=tuple(end.shares[index] for end in noise_ends),
            mix_interval=intervals_of_mix[index],
        )
        members.append(with_verdict(member))
    return members


def _places(worth: Sequence[Fraction]) -> list[int]:
    """Return the place of each by what its share is of, from 1; equal ones have the same."""
    values = np.array(worth, dtype=float)
    return [1 + int((values > value).sum()) for value in values]


def _others_in_group(member: int, groups: Sequence[Sequence[int]]) -> int:
    """Return how many others are in a member's group; 0 where it is in none."""
    for group in groups:
        if member in group:
            return len(group) - 1
    return 0


def _other_rounds(records: RunRecords) -> Sequence[float | None]:
    """Return each member's contribution without the decisive round, where there is one."""
    decisive = decisive_row([row.attributed for row in records.rounds])
    if decisive is None:
        return [None] * len(records.members)
    contributed, _ = records.by_round
    return column_sums(np.delete(contributed, decisive, axis=0))


def _left_out_harm(records: RunRecords, left_out: Collection[int]) -> list[float]:
    """Return by how much each member raised the loss in rounds left out, in falls of the run."""
    if not left_out:
        return [0.0] * len(records.members)
    is_out = np.array([row.round in left_out for row in records.rounds])
    contributed, _ = records.by_round
    fall = fall_of(records.rounds)
    return [max(-value, 0.0) / fall for value in column_sums(contributed[is_out])]


def _names_of(records: RunRecords, client_ids: Sequence[int]) -> tuple[str, ...]:
    """Return what pages call some members, of whom some may be in no record but by name."""
    names = labels(records)
    return tuple(names.get(client_id) or records.names[client_id] for client_id in client_ids)


def _client_ids(
    records: RunRecords, groups: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Return the groups of more than one member, by client ids in place of their positions."""
    client_ids = list(records.members)
    several = [group for group in groups if len(group) > 1]
    return tuple(tuple(client_ids[i] for i in group) for group in several)


def decisive_row(attributed: Sequence[float]) -> int | None:
    """Return which round gained more than all others together moved the loss, from 0.

    ``None``: no round did, or there are fewer than 5.
    """
    if len(attributed) < MIN_ROUNDS:
        return None
    most = max(range(len(attributed)), key=attributed.__getitem__)
    moved_in_all = math.fsum(map(abs, attributed))
    if attributed[most] <= DECISIVE * moved_in_all:
        return None
    return most
