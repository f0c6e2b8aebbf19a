r"""Shares with another mix of classes among the held-out examples.

Contributions by class tell what a member would have contributed on a held-out set with another mix
of the same classes (:mod:`fedif_flower.attribution.shift`). Let :math:`p_k` be the part of class k
in the held-out examples, and :math:`q_k` its part in another mix. A statement gives the interval of
each share over all mixes q within the chi-square ball of radius :math:`\rho` around p,
:math:`\sum_k (q_k - p_k)^2 / p_k \le \rho`.

How large a radius is: let C classes be equally frequent, and let a mix have one of them m times as
frequent, at the cost of all others alike. That mix lies at the distance
:math:`\rho = (m - 1)^2 / (C - 1)`. With ten classes and :math:`\rho = 0.11`, one class may be twice
as frequent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedif_consortium.statement.held_out import Array, Standing, credited_by_class
from fedif_consortium.statement.records import RunRecords
from fedif_flower.attribution.shift import share_intervals
from fedif_flower.attribution.table import CLASSES_KEY
from fedif_flower.run.own_sections import CreditSettings

CLASS_SHIFT = "credit.class-shift"


@dataclass(frozen=True)
class ClassMix:
    """The mixes of classes over which a statement's intervals are taken.

    Attributes
    ----------
    radius : float
        The largest chi-square distance from the held-out mix.
    classes : int
        The number of classes that have a part in the held-out loss.
    """

    radius: float
    classes: int

    @property
    def times(self) -> float:
        """How many times as frequent one class may be, if all classes are equally frequent."""
        if self.classes < 2:
            return 1.0
        return 1 + math.sqrt(self.radius * (self.classes - 1))


def class_mix(records: RunRecords) -> ClassMix | None:
    """Return the mixes of classes for which a statement gives intervals.

    ``None``: contributions are not split by class, or ``credit.class-shift``, which sets the
    radius, is 0.
    """
    mix = records.provenance.get(CLASSES_KEY) or []
    default = CreditSettings.defaults()[CLASS_SHIFT]
    radius = float(records.config.get(CLASS_SHIFT, default))
    is_split = all(len(line.by_class) == len(mix) for line in records.member_rounds)
    if not mix or not is_split or radius == 0:
        return None
    classes = len([share for share in mix if share > 0])
    return ClassMix(radius, classes)


def mix_intervals(
    records: RunRecords, standing: Standing, mix: ClassMix | None
) -> list[tuple[float, float] | tuple[()]]:
    """Return the lowest and the highest share of each member over all mixes, in members' order.

    The pairs are empty if nobody has a share, or contributions are not split by class.

    Parameters
    ----------
    records : RunRecords
        The records of the rounds that count.
    standing : Standing
        The members' standing in these rounds.
    mix : ClassMix, optional
        The mixes; ``None``: all pairs are empty.
    """
    nobody: list[tuple[float, float] | tuple[()]] = [()] * len(standing.client_ids)
    if mix is None or not standing.is_paid.any():
        return nobody
    credited = credited_by_class(records, standing)
    if credited is None:
        return nobody
    shares = np.array(records.provenance[CLASSES_KEY])
    contributed = _contributed_by_class(records, standing, len(shares))
    ends = share_intervals(credited, contributed, shares, mix.radius)
    # The share itself lies in its interval. By rounding, sums over classes may say otherwise.
    lows = np.minimum(ends[:, 0], standing.shares).tolist()
    highs = np.maximum(ends[:, 1], standing.shares).tolist()
    return list(zip(lows, highs, strict=True))


def _contributed_by_class(records: RunRecords, standing: Standing, classes: int) -> Array:
    """Return what members contributed by class, ``[n, C]``, in sums or means as their worth is."""
    place_of = {client_id: place for place, client_id in enumerate(standing.client_ids)}
    sums = np.zeros((len(place_of), classes))
    for line in records.member_rounds:
        sums[place_of[line.client_id]] += np.array(line.by_class)
    per_worth: Array = sums / np.array(standing.draws, dtype=float)[:, None]
    return per_worth
