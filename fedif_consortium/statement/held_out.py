r"""The verdict on a run's held-out set: whether to pay by it, and what could change the order.

The order is that of the members who are paid. A run's verdict is

- *settled* if nothing that is known of the held-out set could change the order,
- *open* if something could,
- *not to be paid by* if so many labels look wrong that the loss cannot be corrected for them.

There is no verdict if the set was not examined before the run, or nobody has a share.

**Wrong labels.** The loss is corrected for some share of wrong labels. Any labels may be wrong
beyond that. Let a share :math:`\delta` of the n examples be wrong. Then the right ones are a sample
at the chi-square distance :math:`\delta / (1 - \delta)` from all n. So, by the inequality of Cauchy
and Schwarz, two members with credits :math:`c_i` and :math:`c_j` may change places only if

.. math:: (c_i - c_j)^2 \le \frac{\delta}{1 - \delta}\, n \operatorname{se}^2(c_i - c_j)

where se is the standard error over held-out examples. This is the worst case. The code takes for
:math:`\delta` the upper end of the interval of the share of wrong labels, less the share for which
the loss is corrected.

**Rare classes.** A class with few examples is no doubt of its own, since the doubt "too few
examples" covers it. To see this, let a class have m examples, and let two members' credits differ
by :math:`d_e` on example e, with mean :math:`\bar d` and standard deviation :math:`s_d`. Examples
are put into blocks without regard to classes. So the class adds about

.. math:: \sum_e d_e^2 = m \bar d^2 + (m - 1) s_d^2

to the squared standard error of the two members' difference. For m > 1 this is at least half of
:math:`m s_d^2`, which is the variance of the class's own sum. For m = 1 it is the square of all
that the class adds. Members who are told apart differ by more than two standard errors, and these
are more than one standard error of the class's sum. So a class whose sum is off by one of its
standard errors does not swap them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.statement.examined import Examined, read_examined
from fedif_consortium.statement.luck import EXAMPLES, Luck, told_apart
from fedif_consortium.statement.records import RunRecords
from fedif_flower.attribution.intervals import split_credit
from fedif_flower.attribution.shift import least_swap
from fedif_flower.attribution.table import CLASSES_KEY
from fedif_flower.errors import ConfigError
from fedif_flower.run.held_out import MOST_CONTRADICTED, last_contradicted
from fedif_flower.run.secret_validation import is_secret, witness_of

Array = NDArray[np.float64]
RunVerdict = Literal["settled", "open", "not-to-be-paid-by"]
Reason = Literal[
    "wrong-labels",
    "contradicted",
    "possibly-wrong-labels",
    "noise-interval",
    "labels-not-known",
    "missing-classes",
    "too-few-examples",
    "no-intervals",
]
Unjudged = Literal["", "not-examined", "no-shares"]

NOT_TO_BE_PAID_BY: RunVerdict = "not-to-be-paid-by"
# The largest share of wrong labels beyond the share that the loss is corrected for. In a
# measurement, a tenth of wrong labels, uncorrected, moved a third of the money of honest members.
MOST_UNCORRECTED = 0.1
# The largest share of wrong labels for which a correction is trusted. It was measured with up to
# 30 % of wrong labels, which the examination estimated at 25 to 40 % (docs/methods/held-out.md).
MOST_CORRECTED = 0.4
REASONS: Mapping[str, str] = {
    "wrong-labels": "more held-out labels look wrong than the loss can be corrected for",
    "contradicted": "the model that came out is sure that many held-out labels are others",
    "possibly-wrong-labels": "more held-out labels may be wrong than the loss is corrected for",
    "noise-interval": "how many of the held-out labels are wrong is known up to an interval alone",
    "labels-not-known": "whether held-out labels are wrong is not known",
    "missing-classes": (
        "what members contribute to classes of which no held-out example counts is not known"
    ),
    "too-few-examples": "there are too few held-out examples to tell some members apart",
    "no-intervals": "how much depends on which held-out examples there were is not known",
}


@dataclass(frozen=True)
class Doubt:
    """A reason why a run is not settled, and the client ids of the members concerned."""

    reason: Reason
    members: tuple[int, ...]


@dataclass(frozen=True)
class NearestSwap:
    """The least change of the mix of classes at which two neighbours in the order are level.

    Attributes
    ----------
    ahead, behind : int
        The client ids of the two members.
    distance : float, optional
        The chi-square distance of that mix from the held-out one; ``None``: no mix puts them level.
    label : int, optional
        The class whose part changes most.
    times : float, optional
        How many times as frequent that class is in the other mix.
    """

    ahead: int
    behind: int
    distance: float | None
    label: int | None
    times: float | None


def _distance_of(swap: NearestSwap) -> float:
    """Return a swap's distance; infinity if no mix of classes brings it about."""
    if swap.distance is None:
        return math.inf
    return swap.distance


@dataclass(frozen=True)
class HeldOutAccount:
    """What a statement says of the held-out set that the run pays by.

    Attributes
    ----------
    verdict : {"settled", "open", "not-to-be-paid-by"}, optional
        The verdict; ``None``: there is none.
    unjudged : {"", "not-examined", "no-shares"}
        Why there is no verdict; empty: there is one.
    is_accepted : bool
        Whether the verdict is "not to be paid by", and the operator pays by the set all the same.
    is_secret : bool
        Whether the set is that of the secret data.
    examples : int, optional
        The number of examples that count; ``None``: they were not examined.
    wrong, wrong_low, wrong_high : float, optional
        The share of labels that looked wrong before the first round, and its 90 % interval.
    confused : float
        The share of labels that may be confused by class; 0: not more than models confuse.
    corrected : float
        The share of wrong labels for which the loss was corrected.
    is_corrected_by_class : bool
        Whether the correction was by the chances of each class.
    contradicted : float, optional
        The share of labels that the last model contradicts with high probability.
    missing, rare : tuple of int
        Classes of which no example counts, and classes with fewer than ten examples.
    doubts : tuple of Doubt
        Reasons why the order could change, or why the set is not to be paid by.
    swaps : tuple of NearestSwap
        One for each two neighbours in the order; empty: contributions are not split by class.
    """

    verdict: RunVerdict | None
    unjudged: Unjudged
    is_accepted: bool
    is_secret: bool
    examples: int | None
    wrong: float | None
    wrong_low: float | None
    wrong_high: float | None
    confused: float
    corrected: float
    is_corrected_by_class: bool
    contradicted: float | None
    missing: tuple[int, ...]
    rare: tuple[int, ...]
    doubts: tuple[Doubt, ...]
    swaps: tuple[NearestSwap, ...]

    @property
    def nearest_swaps(self) -> list[NearestSwap]:
        """The swaps that some mix of classes can bring about, the nearest first."""
        possible = [swap for swap in self.swaps if swap.distance is not None]
        return sorted(possible, key=_distance_of)


@dataclass(frozen=True)
class Standing:
    """The members' credits and shares, from which their order follows.

    All sequences are in the order of ``client_ids``.

    Attributes
    ----------
    client_ids : sequence of int
        The members.
    worth : NDArray
        ``[n]``: the credits that shares are computed from, as sums or as means per draw.
    shares : NDArray
        ``[n]``: shares of the gain, before members that are not told apart are paid alike.
    draws : sequence of int
        ``[n]``: the divisors that make ``worth`` of sums over rounds; all 1 if it is sums.
    lucks : sequence of Luck
        How else ``worth`` could have come out.
    worth_at_noise_ends : sequence of NDArray
        ``[n]`` each: ``worth`` at both ends of the interval of the share of wrong labels; empty: it
        is not known there.
    """

    client_ids: Sequence[int]
    worth: Array
    shares: Array
    draws: Sequence[int]
    lucks: Sequence[Luck]
    worth_at_noise_ends: Sequence[Array] = ()

    @property
    def is_paid(self) -> NDArray[np.bool_]:
        """Whether each member has a share, ``[n]``."""
        return self.shares > 0

    @property
    def luck_of_examples(self) -> Luck | None:
        """How ``worth`` could have come out with other held-out examples, if that is known."""
        for luck in self.lucks:
            if luck.about == EXAMPLES:
                return luck
        return None

    def paid_places(self) -> list[int]:
        """Return the positions of the members who are paid, the highest worth first."""
        places = np.flatnonzero(self.is_paid).tolist()
        return sorted(places, key=lambda place: (-self.worth[place], place))

    def ids(self, places: Iterable[int]) -> tuple[int, ...]:
        """Return the client ids at some positions, each once, in the members' order."""
        return tuple(self.client_ids[place] for place in sorted(set(places)))


def judge_held_out(
    records: RunRecords, used: RunRecords, standing: Standing, *, is_accepted: bool = False
) -> HeldOutAccount:
    """Return the verdict on the held-out set that a run pays by, and what it rests on.

    Parameters
    ----------
    records : RunRecords
        The records of the whole run.
    used : RunRecords
        The records of the rounds that count.
    standing : Standing
        The members' standing in these rounds.
    is_accepted : bool
        Whether the operator pays by the set even if it is not to be paid by.

    Raises
    ------
    ConfigError
        If what the provenance says of the held-out set cannot be read.
    """
    examined = read_examined(records.provenance)
    contradicted = last_contradicted(records.lines, witness_of(records.provenance))
    verdict: RunVerdict | None = None
    doubts: list[Doubt] = []
    unjudged = _why_unjudged(examined, standing)
    if not unjudged:
        against = _against_paying(examined, contradicted, standing)
        doubts = [*against, *_doubts(examined, standing)]
        if against:
            verdict = NOT_TO_BE_PAID_BY
        elif doubts:
            verdict = "open"
        else:
            verdict = "settled"
    return HeldOutAccount(
        verdict=verdict,
        unjudged=unjudged,
        is_accepted=is_accepted and verdict == NOT_TO_BE_PAID_BY,
        is_secret=is_secret(records.provenance),
        examples=examined.examples,
        wrong=examined.noise,
        wrong_low=examined.low,
        wrong_high=examined.high,
        confused=examined.confused,
        corrected=examined.corrected_noise,
        is_corrected_by_class=examined.corrected_by_class,
        contradicted=contradicted,
        missing=examined.missing,
        rare=tuple(examined.rare),
        doubts=tuple(doubts),
        swaps=tuple(_swaps(used, standing)),
    )


def is_payable(held_out: HeldOutAccount) -> bool:
    """Return whether the set is one to pay by, or the operator accepted that it is not."""
    return held_out.verdict != NOT_TO_BE_PAID_BY or held_out.is_accepted


def require_payable(held_out: HeldOutAccount) -> None:
    """Raise ConfigError if the set is not to be paid by, unless the operator accepted that."""
    if is_payable(held_out):
        return
    reasons = [REASONS[doubt.reason] for doubt in held_out.doubts if doubt.reason in _AGAINST]
    raise ConfigError(
        f"the held-out set is not to be paid by: {', and '.join(reasons)}; --accept-held-out goes "
        "on, and the statement says so"
    )


_AGAINST: tuple[Reason, ...] = ("wrong-labels", "contradicted")


def _why_unjudged(examined: Examined, standing: Standing) -> Unjudged:
    """Return why a run has no verdict; empty: it has one."""
    if examined.examples is None:
        return "not-examined"
    if not standing.is_paid.any():
        return "no-shares"
    return ""


def _against_paying(
    examined: Examined, contradicted: float | None, standing: Standing
) -> list[Doubt]:
    """Return the reasons why nobody is to be paid by the set; empty: it may be paid by."""
    everybody = standing.ids(standing.paid_places())
    reasons: list[Doubt] = []
    is_uncorrected = examined.surely_uncorrected > MOST_UNCORRECTED
    is_beyond_correction = examined.noise is not None and examined.noise > MOST_CORRECTED
    if is_uncorrected or is_beyond_correction:
        reasons.append(Doubt("wrong-labels", everybody))
    if contradicted is not None:
        unexplained = contradicted - examined.corrected_noise
        if unexplained > MOST_CONTRADICTED:
            reasons.append(Doubt("contradicted", everybody))
    return reasons


def _doubts(examined: Examined, standing: Standing) -> list[Doubt]:
    """Return the other doubts about the order; a doubt about a single member is none."""
    paid = standing.paid_places()
    luck = standing.luck_of_examples
    everybody = standing.ids(paid)
    named: dict[Reason, tuple[int, ...]] = {}
    if examined.noise is None:
        named["labels-not-known"] = everybody
    elif luck is not None:
        named["possibly-wrong-labels"] = standing.ids(_moved_by_labels(examined, standing, luck))
    elif examined.possibly_uncorrected:
        named["possibly-wrong-labels"] = everybody
    if examined.is_corrected_within_an_interval:
        named["noise-interval"] = standing.ids(_moved_by_noise(standing))
    if examined.missing:
        named["missing-classes"] = everybody
    if luck is None:
        named["no-intervals"] = everybody
    else:
        named["too-few-examples"] = standing.ids(_not_told_apart(standing, luck))
    return [Doubt(reason, members) for reason, members in named.items() if len(members) > 1]


def _not_told_apart(standing: Standing, luck: Luck) -> list[int]:
    """Return the positions of paid members that held-out examples do not tell apart from another.

    The members of groups would not be the same: a group ends at the first member that is told apart
    from any of the group, though that member may be alike with the last of the group.
    """
    apart = told_apart(standing.worth, [luck])
    paid = standing.paid_places()
    alike = []
    for place in paid:
        others = [other for other in paid if other != place]
        if not apart[place, others].all():
            alike.append(place)
    return alike


def _moved_by_labels(examined: Examined, standing: Standing, luck: Luck) -> list[int]:
    """Return the positions of paid members that wrong labels could make change places.

    This is the bound in the module's docstring.
    """
    wrong = examined.possibly_uncorrected
    if not wrong or examined.examples is None:
        return []
    paid = standing.paid_places()
    if wrong >= 1:
        return paid  # All labels may be wrong: then the bound is infinite.
    reach = wrong / (1 - wrong) * examined.examples
    may_move: list[int] = []
    for ahead, behind in combinations(paid, 2):
        gap = standing.worth[ahead] - standing.worth[behind]
        errors = luck.credited[:, ahead] - luck.credited[:, behind]
        squared_error = (errors**2).sum()
        if gap**2 <= reach * squared_error:
            may_move += [ahead, behind]
    return may_move


def _moved_by_noise(standing: Standing) -> list[int]:
    """Return the positions of members that change places at an end of the share of wrong labels.

    If contributions at the ends are not known, these are all members who are paid.
    """
    if not standing.worth_at_noise_ends:
        return standing.paid_places()
    gaps = _gaps(standing.worth)
    changes_place = np.zeros(len(gaps), dtype=bool)
    for worth in standing.worth_at_noise_ends:
        changes_place |= (gaps * _gaps(worth) < 0).any(axis=1)
    places: list[int] = np.flatnonzero(changes_place).tolist()
    return places


def _gaps(worth: Array) -> Array:
    """Return how far each member is ahead of each other, ``[n, n]``; a negative worth counts 0."""
    paid_worth = np.maximum(worth, 0.0)
    gaps: Array = paid_worth[:, None] - paid_worth
    return gaps


def _swaps(records: RunRecords, standing: Standing) -> list[NearestSwap]:
    """Return, for each two neighbours in the order, the least change of classes to be level."""
    by_class = credited_by_class(records, standing)
    if by_class is None:
        return []
    mix = np.array(records.provenance[CLASSES_KEY])
    swaps = []
    for first, second in pairwise(standing.paid_places()):
        # Two members may be equal but for rounding: then sums over classes may order them otherwise
        # than sums over rounds, which the order of the places follows.
        if by_class[first].sum() < by_class[second].sum():
            ahead = second
            behind = first
        else:
            ahead = first
            behind = second
        swap = NearestSwap(
            ahead=standing.client_ids[ahead],
            behind=standing.client_ids[behind],
            distance=None,
            label=None,
            times=None,
        )
        least = least_swap(by_class[ahead], by_class[behind], mix)
        label = least.most_moved
        if least.ratios is not None and label is not None:
            times = float(least.ratios[label])
            swap = replace(swap, distance=least.distance, label=label, times=times)
        swaps.append(swap)
    return swaps


def credited_by_class(records: RunRecords, standing: Standing) -> Array | None:
    """Return the members' credits by class, ``[n, C]``, in sums or means as their worth is.

    :func:`~fedif_flower.attribution.intervals.split_credit` splits a credit; where it says that
    parts lose, each example loses the same, so a class loses by its part of the examples. ``None``:
    contributions are not split by class, or the classes' parts of the examples are not known.
    """
    mix = records.provenance.get(CLASSES_KEY)
    if not mix or any(len(line.by_class) != len(mix) for line in records.member_rounds):
        return None
    place_of = {client_id: place for place, client_id in enumerate(standing.client_ids)}
    parts_of_examples = np.array(mix)
    sums = np.zeros((len(place_of), len(mix)))
    for line in records.member_rounds:
        lost = (line.credited - line.contribution) * parts_of_examples
        sums[place_of[line.client_id]] += split_credit(
            line.contribution, line.credited, np.array(line.by_class), lost
        )
    per_worth: Array = sums / np.array(standing.draws, dtype=float)[:, None]
    return per_worth
