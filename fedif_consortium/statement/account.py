r"""A run's account: what each member contributed, and which share of the gain it is due.

A member's contribution :math:`c_i` is the sum of its contributions to the rounds that count, in
nats of validation loss. Its credit :math:`\hat c_i \le c_i` is the part of the contribution that
lies within bounds (:mod:`fedif_flower.attribution.credit`). Its share of what was gained is

.. math:: s_i = \frac{\max(\hat c_i, 0)}{\max\big(\sum_j \max(\hat c_j, 0), \sum_j c_j\big)}

A member with a negative contribution is shown with it, and is paid 0. What the model gained beyond
all credits is paid to nobody. The denominator has the sum of all contributions, not of the positive
ones alone: two members whose updates cancel could raise that sum at will, and take everybody's pay.

Rounds whose remainders keep the contributions from adding up are left out and named. Each of them
is left out with its whole event: a harm and the recovery from it both count, or neither (see
:func:`~fedif_consortium.statement.shares.left_out_rounds`). A run gives no shares if its loss ends
no lower than it began, or if no round is left.
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
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, called
from fedif_flower.run.completeness import Completeness

# A round is decisive if it gained more than this part of what all rounds moved the loss, up or
# down: more than all others together, that is.
DECISIVE = 0.5


@dataclass(frozen=True)
class Account:
    """What a run and each of its members gained, in nats of validation loss, and who is paid what.

    Attributes
    ----------
    rounds : int
        The number of rounds from ``first_round`` on, those in ``left_out`` included.
    loss_before : float, optional
        The first finite loss from there on; ``None``: there is none.
    loss_after : float, optional
        The loss at the end of the run; ``None``: it is not finite.
    decrease : float, optional
        How much the loss fell from ``loss_before`` to ``loss_after``; ``None`` without them. If
        members have shares, it is the sum of ``attributed``, ``remainder`` and
        ``left_out_decrease``.
    attributed : float
        The sum of the members' contributions to the rounds that count.
    remainder : float
        The part of these rounds' falls that no contribution explains.
    left_out_decrease : float
        How much the rounds left out lowered the loss on balance.
    budget_cents : int, optional
        The amount that is shared out, in cents; ``None``: none is.
    first_round : int
        The first round that counts.
    left_out : tuple of int
        The later rounds that count for nobody (see :func:`left_out_rounds`).
    decisive_round : int, optional
        The round that gained more than all others together moved the loss; ``None``: no round did.
    decisive : float
        What the decisive round gained; 0 if there is none.
    nobody_share : float
        The share of the gain beyond all credits, which nobody is paid.
    nobody_cents : int, optional
        The part of the budget that belongs to ``nobody_share``.
    unpaid : str
        Why nobody has a share; empty: members have shares.
    completeness : Completeness
        The completeness of the whole run, whichever rounds count.
    about : str
        What could have been different, as the intervals assume; empty: there are no intervals.
    pay_by : {"sum", "draw"}
        Whether shares are computed from sums over rounds, or from means per draw.
    ties : {"apart", "alike"}
        Whether members that are not told apart are paid alike.
    is_drawn : bool
        Whether members were drawn in different rounds.
    never_drawn : tuple of str
        The names of members that were drawn in no round.
    groups : tuple of tuple of int
        Groups of members that are not told apart, by client id (see
        :mod:`~fedif_consortium.statement.luck`).
    held_out : HeldOutAccount
        Whether the held-out set is one to pay by.
    mix : ClassMix, optional
        The mixes of classes for which shares have intervals; ``None``: they have no such intervals.
    names : mapping of int to str
        What the operator calls members, by client id.
    members : tuple of MemberAccount
        The members, the highest contribution first.
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
        """The number of the run's last round."""
        return self.first_round + self.rounds - 1

    @property
    def widest_share(self) -> float | None:
        """How far any member's share could have come out from its own, with another held-out set.

        It is the largest distance from a share to an end of its interval. ``None``: shares have no
        intervals about another held-out set.
        """
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
    """The rounds that count, and the members' figures in them, in the members' order.

    Attributes
    ----------
    since : RunRecords
        The records from the first round that counts on.
    used : RunRecords
        The same without the rounds ``left_out``.
    left_out : tuple of int
        Rounds that count for nobody, since they keep the contributions from adding up.
    pay_by : {"sum", "draw"}
        Whether shares are computed from sums over rounds, or from means per draw.
    draws : Draws
        How often members were drawn.
    totals : Totals
        What members contributed and are credited with.
    lucks : Lucks
        How else these figures could have come out.
    unpaid : str
        Why nobody has a share; empty: members have shares.
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
class _Shares:
    """The members' shares of what was gained, in the members' order.

    Attributes
    ----------
    groups : list of list of int
        Groups of members that are not told apart, by position.
    earned, paid : list of Fraction
        The shares before and after ties: with ``ties = "alike"``, the members of a group are paid
        alike.
    nobody : Fraction
        The share that nobody is paid.
    cents : sequence of int or None
        The members' amounts, and behind them nobody's; all are ``None`` if there is no budget.
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
        The records of the whole run.
    budget_cents : int, optional
        The amount to share out, in cents, >= 0; ``None``: there is none.
    pay_by : {"sum", "draw"}
        Whether shares are computed from sums of credits, or from their means over the rounds in
        which a member was drawn.
    ties : {"apart", "alike"}
        With ``"alike"``, each group of members that are not told apart shares equally what is
        theirs together.
    from_round : int
        The first round that counts; earlier rounds count for nobody.
    accept_held_out : bool
        Pay by the held-out set even if it is not to be paid by; the account then says so.

    Raises
    ------
    ConfigError
        If no statement can begin with ``from_round`` (see
        :func:`~fedif_consortium.statement.from_round.records_from`), or what the provenance says of
        the held-out set cannot be read.
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
    decisive_round, decisive = _decisive_round(counted.used)
    return Account(
        rounds=len(counted.since.rounds),
        loss_before=first_loss,
        loss_after=last_loss,
        decrease=_decrease(counted.since),
        attributed=math.fsum(row.attributed for row in counted.used.rounds),
        remainder=counted.used.remainder,
        left_out_decrease=_left_out_decrease(counted),
        decisive_round=decisive_round,
        decisive=decisive,
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
    """Return the rounds that count, and the members' figures in them."""
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


def _decrease(since: RunRecords) -> float | None:
    """Return how much the loss fell between the ends of the run; ``None``: it is not known."""
    fall = fall_of(since.rounds)
    if not math.isfinite(fall):
        return None
    return fall


def _left_out_decrease(counted: _Counted) -> float:
    """Return how much the rounds left out lowered the loss; 0 if none is left out."""
    if not counted.left_out:
        return 0.0
    # The fall is finite: without a fall, no round is left out.
    return fall_of(counted.since.rounds) - counted.used.decrease


def _decisive_round(used: RunRecords) -> tuple[int | None, float]:
    """Return the number of the decisive round and what it gained; without one, ``None`` and 0."""
    attributed = [row.attributed for row in used.rounds]
    row = decisive_row(attributed)
    if row is None:
        return None, 0.0
    return used.rounds[row].round, attributed[row]


def _shares(counted: _Counted, ties: Ties, budget_cents: int | None) -> _Shares:
    """Return the members' shares of what was gained, and nobody's, and their amounts."""
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
    """Return what shares would be at both ends of the interval of the share of wrong labels.

    It is empty unless the loss is corrected for a share of wrong labels that has an interval.
    """
    examined = read_examined(counted.used.provenance)
    if counted.unpaid or not examined.is_corrected_within_an_interval:
        return []
    return at_noise_ends(counted.used, counted.draws, counted.pay_by)


def _standing(counted: _Counted, shares: _Shares, noise_ends: Sequence[AtNoiseEnd]) -> Standing:
    """Return the members' standing, for the verdict on the held-out set."""
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
    """Return each member's account with its verdict, in the members' order."""
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
    """Return each member's place by ``worth``, from 1 for the highest; equal ones share a place."""
    values = np.array(worth, dtype=float)
    return [1 + int((values > value).sum()) for value in values]


def _others_in_group(member: int, groups: Sequence[Sequence[int]]) -> int:
    """Return how many others are in a member's group; 0 if it is in none."""
    for group in groups:
        if member in group:
            return len(group) - 1
    return 0


def _other_rounds(records: RunRecords) -> Sequence[float | None]:
    """Return each member's contribution without the decisive round; ``None`` if there is none."""
    decisive = decisive_row([row.attributed for row in records.rounds])
    if decisive is None:
        return [None] * len(records.members)
    contributed, _ = records.by_round
    return column_sums(np.delete(contributed, decisive, axis=0))


def _left_out_harm(records: RunRecords, left_out: Collection[int]) -> list[float]:
    """Return how much each member raised the loss in the rounds left out, in multiples of the fall.

    The fall is that of the loss between the ends of the run.
    """
    if not left_out:
        return [0.0] * len(records.members)
    is_out = np.array([row.round in left_out for row in records.rounds])
    contributed, _ = records.by_round
    fall = fall_of(records.rounds)
    return [max(-value, 0.0) / fall for value in column_sums(contributed[is_out])]


def _names_of(records: RunRecords, client_ids: Sequence[int]) -> tuple[str, ...]:
    """Return what pages call some members; members of no round have their names, or their ids."""
    names = labels(records)
    for client_id in client_ids:
        name = records.names.get(client_id, "")
        names.setdefault(client_id, called(client_id, UNKNOWN_PARTITION, name))
    return tuple(names[client_id] for client_id in client_ids)


def _client_ids(
    records: RunRecords, groups: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Return the groups of more than one member, as client ids instead of positions."""
    client_ids = list(records.members)
    several = [group for group in groups if len(group) > 1]
    return tuple(tuple(client_ids[i] for i in group) for group in several)


def decisive_row(attributed: Sequence[float]) -> int | None:
    """Return the index of the round that gained more than all others together moved the loss.

    ``None``: no round did, or there are fewer than 5 rounds.

    Parameters
    ----------
    attributed : sequence of float
        The sum of contributions to each round.
    """
    if len(attributed) < MIN_ROUNDS:
        return None
    most = max(range(len(attributed)), key=attributed.__getitem__)
    moved_in_all = math.fsum(map(abs, attributed))
    if attributed[most] <= DECISIVE * moved_in_all:
        return None
    return most
