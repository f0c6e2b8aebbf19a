r"""Members' shares if the held-out loss were corrected for another share of wrong labels.

The examination before a run estimates the share of wrong labels, and gives an interval for it.
Contributions are measured with the loss corrected for the estimate, and for both ends of the
interval (:mod:`fedif_flower.attribution.noise_ends`): along the same steps, with the same rounds,
bounds of credit and rules. So a member has three shares of the gain. The interval that a statement
gives is the union of the three shares' intervals.
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
    """The members' shares at one end of the interval of wrong labels, in the members' order.

    Attributes
    ----------
    worth : NDArray
        ``[n]``: the credits that shares are computed from, as sums or as means per draw.
    shares : list of float
        The shares, before members that are not told apart are paid alike.
    intervals : list of tuple of Between
        The intervals of these shares.
    """

    worth: NDArray[np.float64]
    shares: list[float]
    intervals: list[tuple[Between, ...]]


def at_noise_ends(records: RunRecords, draws: Draws, pay_by: PayBy) -> list[AtNoiseEnd]:
    """Return the shares at both ends; an empty list if contributions there are not known.

    Parameters
    ----------
    records : RunRecords
        The records of the rounds that count.
    draws : Draws
        How often members were drawn in these rounds.
    pay_by : {"sum", "draw"}
        Whether shares are computed from sums of credits, or from means per draw.
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
    """Return the intervals of a member's share, widened to include those at both ends.

    Parameters
    ----------
    intervals : sequence of Between
        The intervals of its share with the loss as it is corrected.
    place : int
        The member's position.
    ends : sequence of AtNoiseEnd
        The shares at both ends; empty: the intervals stay as they are.
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
