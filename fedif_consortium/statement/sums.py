"""Members' sums over the rounds that count, means per draw, and how else they could come out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.statement.luck import ROUNDS, Between, Luck, kinds_of_luck, luck_intervals
from fedif_consortium.statement.records import RunRecords
from fedif_consortium.statement.settings import PayBy
from fedif_flower.attribution.intervals import share_deviations


@dataclass(frozen=True)
class Draws:
    """How often members were drawn for the rounds that count.

    Attributes
    ----------
    counts : list of int
        In how many of these rounds each member was drawn, in the members' order.
    never_drawn : list of int
        The client ids of members that were drawn in none of them and contributed to none.
    is_drawn : bool
        Whether members were drawn in different rounds.
    """

    counts: list[int]
    never_drawn: list[int]
    is_drawn: bool

    @property
    def divisors(self) -> list[int]:
        """The divisors that make means per draw of sums; 1 for a member that was never drawn."""
        return [max(count, 1) for count in self.counts]


@dataclass(frozen=True)
class Totals:
    """Members' figures over the rounds that count, in the members' order, in nats.

    Attributes
    ----------
    contributed, credited : list of float
        Sums of contributions, and of credits.
    gained, worth : list of Fraction
        Contributions, and credits, that shares are computed from: the sums, or means per draw.
    """

    contributed: list[float]
    credited: list[float]
    gained: list[Fraction]
    worth: list[Fraction]


@dataclass(frozen=True)
class Lucks:
    """How else sums, means per draw, and ``Totals.worth`` could have come out."""

    of_sums: list[Luck]
    of_means: list[Luck]
    of_worth: list[Luck]


@dataclass(frozen=True)
class Intervals:
    """Each member's intervals of its contribution, of its mean per draw, and of its own share."""

    of_sums: list[tuple[Between, ...]]
    of_means: list[tuple[Between, ...]]
    of_shares: list[tuple[Between, ...]]


def draws_of(records: RunRecords) -> Draws:
    """Return how often each member was drawn for the rounds that count.

    A draw counts in the round in which its reply came, since the update counts there. If no reply
    came, the draw counts in the round in which the member was asked.
    """
    rounds_drawn = _rounds_drawn(records)
    counts = [len(rounds) for rounds in rounds_drawn.values()]
    # A member that was asked before the rounds that count may contribute to them, since server
    # momentum carries its update on.
    contributors = {line.client_id for line in records.member_rounds}
    drawn = {client_id for client_id, rounds in rounds_drawn.items() if rounds}
    known_ids = {*records.names, *records.registered_ids(), *records.members}
    never_drawn = sorted(known_ids - drawn - contributors)
    differ = len(set(rounds_drawn.values())) > 1
    is_drawn = differ or len(never_drawn) > 0
    return Draws(counts, never_drawn, is_drawn)


def _rounds_drawn(records: RunRecords) -> dict[int, frozenset[int]]:
    """Return the rounds that count for which each member was drawn, in the members' order."""
    counted = {row.round for row in records.rounds}
    came_later = {(reply.client_id, reply.asked_in) for reply in records.replies if reply.asked_in}
    rounds_of: dict[int, set[int]] = {client_id: set() for client_id in records.members}
    for reply in records.replies:
        is_later = reply.status == "late" and (reply.client_id, reply.round) in came_later
        if reply.round in counted and not is_later:
            rounds_of[reply.client_id].add(reply.round)
    return {client_id: frozenset(rounds) for client_id, rounds in rounds_of.items()}


def totals_of(records: RunRecords, draws: Draws, pay_by: PayBy) -> Totals:
    """Return the members' sums over rounds, and the figures that shares are computed from."""
    contributed, credited = map(column_sums, records.by_round)
    gained = list(map(Fraction, contributed))
    worth = list(map(Fraction, credited))
    if pay_by == "draw":
        gained = _per_draw(gained, draws)
        worth = _per_draw(worth, draws)
    return Totals(contributed, credited, gained, worth)


def column_sums(by_round: NDArray[np.float64]) -> list[float]:
    """Return the exact sums over rounds of figures ``[T, n]``; adding 0.0 turns -0.0 into 0.0."""
    return [math.fsum(column) + 0.0 for column in by_round.T]


def _per_draw(sums: Sequence[Fraction], draws: Draws) -> list[Fraction]:
    """Return the exact means per draw of sums."""
    return [value / count for value, count in zip(sums, draws.divisors, strict=True)]


def lucks_of(records: RunRecords, draws: Draws, pay_by: PayBy) -> Lucks:
    """Return how else the members' sums and means could have come out."""
    of_sums = kinds_of_luck(records, draws.is_drawn)
    of_means = kinds_of_luck(records, draws.is_drawn, np.array(draws.divisors, dtype=float))
    of_paid = of_sums
    if pay_by == "draw":
        of_paid = of_means
    # Shares and ties take account of another held-out set and another draw alone: with other rounds
    # it would be another run.
    of_worth = [luck for luck in of_paid if luck.about != ROUNDS]
    return Lucks(of_sums, of_means, of_worth)


def intervals_of(
    totals: Totals, draws: Draws, shares: Sequence[Fraction], lucks: Lucks
) -> Intervals:
    """Return the intervals of the members' figures.

    Parameters
    ----------
    totals : Totals
        The figures.
    draws : Draws
        How often members were drawn.
    shares : sequence of Fraction
        The members' shares, before members that are not told apart are paid alike.
    lucks : Lucks
        How else the figures could have come out.
    """
    contributed = np.array(totals.contributed)
    gained = np.array(totals.gained, dtype=float)
    worth = np.array(totals.worth, dtype=float)
    of_shares = []
    if any(shares):
        for luck in lucks.of_worth:
            moved_shares = share_deviations(worth, gained, luck.credited, luck.contributed)
            of_shares.append(replace(luck, contributed=moved_shares))
    return Intervals(
        of_sums=luck_intervals(contributed, lucks.of_sums),
        of_means=luck_intervals(contributed / draws.divisors, lucks.of_means),
        of_shares=luck_intervals(np.array(shares, dtype=float), of_shares, 0.0, 1.0),
    )
