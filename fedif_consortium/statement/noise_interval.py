r"""Shares if the held-out loss were corrected for another share of wrong labels than it is.

The examination before a run gives that share with an interval. Contributions are measured at both
of its ends too (:mod:`fedif_flower.attribution.noise_ends`): along the same steps, with the same
rounds, bounds of credit and rules. So a member has three shares, and the interval of its share is
the union of all three's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.statement.luck import Between
from fedif_consortium.statement.records import RunRecords
from fedif_consortium.statement.settings import PayBy
from fedif_consortium.statement.shares import gain_shares
from fedif_consortium.statement.sums import Draws, intervals_of, lucks_of, totals_of


@dataclass(frozen=True)
class AtNoiseEnd:
    """What shares would be at one end of the interval of wrong labels, in the members' order.

    Attributes
    ----------
    worth : NDArray
        ``[n]``: what shares are of.
    shares : list of float
        Before those who are not told apart are paid alike.
    intervals : list of tuple of Between
        The shares' own.
    """

    worth: NDArray[np.float64]
    shares: list[float]
    intervals: list[tuple[Between, ...]]


def at_noise_ends(records: RunRecords, draws: Draws, pay_by: PayBy) -> list[AtNoiseEnd]:
    """Return what shares would be at both ends; nothing where contributions there are not known.

    Parameters
    ----------
    records : RunRecords
        Those of the rounds that count.
    draws : Draws
        How often members were asked in them.
    pay_by : {"sum", "draw"}
        What shares are of.
    """
    ends = []
    for of_end in records.at_noise_ends():
        totals = totals_of(of_end, draws, pay_by)
        shares = gain_shares(totals.worth, sum(totals.gained))
        intervals = intervals_of(totals, draws, shares, lucks_of(of_end, draws, pay_by))
        ends.append(
            AtNoiseEnd(
                worth=np.array(totals.worth, dtype=float),
                shares=[float(share) for share in shares],
                intervals=intervals.of_shares,
            )
        )
    return ends


def union(intervals: Sequence[Between], place: int, ends: Sequence[AtNoiseEnd]) -> list[Between]:
    """Return a member's intervals of its share, widened by those and its shares at both ends.

    Parameters
    ----------
    intervals : sequence of Between
        With the share of wrong labels that the loss is corrected for.
    place : int
        The member's.
    ends : sequence of AtNoiseEnd
        None: the intervals stay as they are.
    """
    widened = []
    for interval in intervals:
        values = [interval.low, interval.high]
        for end in ends:
            values.append(end.shares[place])
            for other in end.intervals[place]:
                if other.about == interval.about:
                    values += [other.low, other.high]
        widened.append(Between(interval.about, min(values), max(values)))
    return widened
