r"""How else members' figures could have come out: with other held-out examples, or another draw.

A figure depends on chance in several ways: on which examples were held out, on which members were
drawn for a round, or on which rounds there were. Each way is a *kind of luck*. It is described by a
table of deviations :math:`z` of the shape ``[k, n]``, with one column for each of n members. The
variance of a member's figure is the sum of its column's squares. The variance of the difference of
two members is the sum of the squares of the columns' difference. Kinds of luck are taken to be
independent, so their variances add up.

Two members i and j are told apart if their credits differ by more than

.. math:: \sqrt{\textstyle\sum_l \big( \tfrac{1}{\sqrt 2}\, q_{.95}(n, \nu_l)\,
          \lVert z_{l,i} - z_{l,j} \rVert \big)^2}

where l runs over the kinds of luck, and q is the 95 % quantile of the studentised range of n
members with :math:`\nu_l` degrees of freedom (Tukey-Kramer). So if all n members contribute the
same, some two of them are told apart in one run of twenty.

Members that are not told apart are put into groups. A group begins with the highest member that is
in no group yet. The members behind it join, one after the other, until one is told apart from any
member of the group. Only members with a credit above 0 are in groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import studentized_range

from fedif_consortium.statement.records import RunRecords
from fedif_flower.attribution.intervals import (
    CONFIDENCE,
    MIN_ROUNDS,
    SplitContribution,
    block_sums,
    deviations,
    quantile,
)

Array = NDArray[np.float64]
EXAMPLES = "another held-out set of the same size"
DRAW = "another draw of members"
ROUNDS = "other rounds"
BOTH = "both"


@dataclass(frozen=True)
class Between:
    """A 95 % interval, and what is assumed to vary: one of the constants above."""

    about: str
    low: float
    high: float


@dataclass(frozen=True)
class Luck:
    """A kind of luck, as the module describes it.

    Attributes
    ----------
    about : str
        What is assumed to vary, such as :data:`EXAMPLES`.
    contributed, credited : NDArray
        ``[k, n]`` each: deviations of the members' contributions, and of their credits.
    degrees : int
        Degrees of freedom of the variances.
    """

    about: str
    contributed: Array
    credited: Array
    degrees: int


def of_blocks(about: str, values: Iterable[Array], weights: Sequence[float]) -> Luck:
    """Return the luck of sums over blocks, which are blocks of held-out examples, or rounds.

    Parameters
    ----------
    about : str
        What is assumed to vary.
    values : iterable of NDArray
        Contributions by block, and credits by block, ``[b, n]`` each.
    weights : sequence of float
        ``[b]``: the blocks' weights, which sum to 1.
    """
    contributed, credited = values
    weights_of_blocks = np.array(weights)
    return Luck(
        about,
        contributed=deviations(contributed, weights_of_blocks),
        credited=deviations(credited, weights_of_blocks),
        degrees=len(weights) - 1,
    )


def of_draws(values: Array, draws: Array) -> Luck:
    r"""Return the luck of the draw, for means per draw.

    A member that was drawn a times has the standard error
    :math:`\sqrt{\sum_t (c_t - \bar c)^2 / (a (a-1))}` with a - 1 degrees of freedom, where
    :math:`c_t` is its contribution to round t, and :math:`\bar c` the mean over its a rounds. A
    member that was drawn once gets an interval that includes 0: its single round tells no variance.

    Parameters
    ----------
    values : NDArray
        ``[2, T, n]``: contributions and credits by round.
    draws : NDArray
        ``[n]``: how often each member was drawn, >= 1.
    """
    rounds = values.shape[1]
    degrees = np.maximum(draws - 1, 1.0)  # [n]
    # All intervals are made with the degrees of freedom of all rounds. A member has fewer of its
    # own, so its standard error is enlarged by the ratio of the quantiles.
    quantiles = np.array([quantile(degrees_of_member) for degrees_of_member in degrees])
    wider = quantiles / quantile(rounds - 1)
    means = values.sum(axis=1) / draws  # [2, n]
    squares = np.maximum((values**2).sum(axis=1) - draws * means**2, 0.0)
    standard_errors = np.sqrt(squares / (draws * degrees))
    errors = np.where(draws > 1, wider * standard_errors, np.abs(means))
    contributed, credited = errors
    return Luck(
        DRAW,
        contributed=np.diag(contributed),
        credited=np.diag(credited),
        degrees=rounds - 1,
    )


def luck_intervals(
    values: Array, kinds: Sequence[Luck], least: float = -math.inf, most: float = math.inf
) -> list[tuple[Between, ...]]:
    """Return each value's intervals: one for each kind of luck, and one for both if there are two.

    Parameters
    ----------
    values : NDArray
        ``[n]``: the members' figures.
    kinds : sequence of Luck
        The kinds of luck; their ``contributed`` are the deviations of ``values``.
    least, most : float
        The range of possible values, to which intervals are cut.
    """
    widths: dict[str, Array] = {}  # By what the luck is about, [n] each.
    for kind in kinds:
        errors = np.linalg.norm(kind.contributed, axis=0)
        widths[kind.about] = quantile(kind.degrees) * errors
    if len(widths) > 1:
        squares = [width**2 for width in widths.values()]
        widths[BOTH] = np.sqrt(sum(squares))
    intervals: list[tuple[Between, ...]] = [()] * len(values)
    for about, width in widths.items():
        lows = (values - width).clip(least, most) + 0.0
        highs = (values + width).clip(least, most) + 0.0
        for i, (low, high) in enumerate(zip(lows.tolist(), highs.tolist(), strict=True)):
            intervals[i] += (Between(about, low, high),)
    return intervals


def told_apart(values: Array, lucks: Sequence[Luck]) -> NDArray[np.bool_]:
    """Return which members are told apart, ``[n, n]``: their credits differ by more than luck.

    Parameters
    ----------
    values : NDArray
        ``[n]``: the members' credits.
    lucks : sequence of Luck
        How else these could have come out.
    """
    squares = np.zeros((len(values), len(values)))
    for luck in lucks:
        z = luck.credited
        gram = z.T @ z
        variances = np.diag(gram)
        variances_of_differences = variances + variances[:, None] - 2 * gram  # [n, n]
        squares += _range(len(values), luck.degrees) ** 2 / 2 * variances_of_differences
    apart: NDArray[np.bool_] = np.abs(values - values[:, None]) > np.sqrt(np.maximum(squares, 0.0))
    return apart


def groups(values: Array, apart: NDArray[np.bool_]) -> list[list[int]]:
    """Return groups of members that are not told apart, by position, as the module says.

    Each member whose value is above 0 is in one group, be it alone. Groups, and the members in
    each, are in descending order of their values.
    """
    alike: list[list[int]] = []
    for i in sorted(np.flatnonzero(values > 0), key=lambda i: (-values[i], i)):
        if alike and not apart[i, alike[-1]].any():
            alike[-1].append(int(i))
        else:
            alike.append([int(i)])
    return alike


@lru_cache(maxsize=64)
def _range(members: int, degrees: int) -> float:
    """Return the 95 % quantile of the studentised range, which is slow to compute."""
    return float(studentized_range.ppf(CONFIDENCE, max(members, 2), degrees))


def kinds_of_luck(records: RunRecords, is_drawn: bool, draws: Array | None = None) -> list[Luck]:
    """Return the kinds of luck of members' sums over rounds, or of their means per draw.

    - Held-out examples are a kind of luck if contributions are split by blocks of examples.
    - The draw is one if members were drawn in different rounds.
    - Other rounds are one if neither of the first two is.

    With fewer than five rounds the list is empty.

    Parameters
    ----------
    records : RunRecords
        The records of the rounds that count.
    is_drawn : bool
        Whether members were drawn in different rounds.
    draws : NDArray, optional
        ``[n]``: how often each member was drawn, for means per draw; ``None``: for sums.
    """
    kinds: list[Luck] = []
    if len(records.rounds) < MIN_ROUNDS:
        return kinds
    is_split = bool(records.block_weights)
    if is_split:
        kinds.append(_luck_of_examples(records, draws))
    if not is_drawn and is_split:
        return kinds
    about = ROUNDS
    if is_drawn:
        about = DRAW
    if draws is None:
        kinds.append(_luck_of_rounds(about, records))
    else:
        kinds.append(replace(of_draws(records.by_round, draws), about=about))
    return kinds


def _luck_of_examples(records: RunRecords, draws: Array | None) -> Luck:
    """Return the luck of the held-out examples, for sums, or with ``draws`` for means per draw."""
    weights = records.block_weights
    split = [
        SplitContribution(line.client_id, line.contribution, line.credited, line.by_block)
        for line in records.member_rounds
    ]
    contributed, credited = block_sums(split, list(records.members), len(weights))
    if draws is not None:
        contributed = contributed / draws
        credited = credited / draws
    return of_blocks(EXAMPLES, [contributed, credited], weights)


def _luck_of_rounds(about: str, records: RunRecords) -> Luck:
    """Return the luck of sums over rounds, which are blocks of equal weight.

    ``about`` says whether other rounds are assumed, or another draw of members for them.
    """
    rounds = len(records.rounds)
    return of_blocks(about, records.by_round, [1 / rounds] * rounds)
