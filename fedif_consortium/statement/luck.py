r"""How else a run's figures could have come out: with other held-out examples, or another draw.

A kind of luck is a table of deviations :math:`z` ``[k, n]``: a member's variance is the sum of its
column's squares, a difference's that of the columns' differences. Kinds that are independent of
each other add up by their squares.

Two members are told apart where their credits differ by more than

.. math:: \sqrt{\textstyle\sum_l \big( \tfrac{1}{\sqrt 2}\, q_{.95}(n, \nu_l)\,
          \lVert z_{l,i} - z_{l,j} \rVert \big)^2}

with q the quantile of the studentised range of n members and :math:`\nu_l` degrees of freedom, so
that of n members that contribute the same, two are told apart in one run of twenty (Tukey-Kramer).
A group begins with the highest that is in none yet; who follows joins it, down to the first that is
told apart from one of the group. Only those who have a share are in groups.
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
    """A 95 % interval, and what else there could have been."""

    about: str
    low: float
    high: float


@dataclass(frozen=True)
class Luck:
    """A kind of luck: deviations of contributions and of credits, ``[k, n]`` each."""

    about: str
    contributed: Array
    credited: Array
    degrees: int


def of_blocks(about: str, values: Iterable[Array], weights: Sequence[float]) -> Luck:
    """Return the luck of sums over blocks: of held-out examples, or of rounds.

    ``values`` are what was contributed and what is credited, ``[b, n]`` each.
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
    r"""Return the luck of means per draw: ``[2, T, n]``, and how often members were drawn.

    A member drawn a times has the standard error :math:`\sqrt{\sum_t (c_t - \bar c)^2 / (a (a-1))}`
    with a - 1 degrees of freedom. Who was drawn once might as well have contributed nothing.
    """
    rounds = values.shape[1]
    degrees = np.maximum(draws - 1, 1.0)  # [n]
    # An interval is made with the degrees of all rounds: fewer of a member's own make it wider.
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
    """Return each value's intervals: one for each kind of luck, and where there are two, for both.

    Parameters
    ----------
    values : NDArray
        ``[n]``: what was contributed.
    kinds : sequence of Luck
        By how much that could have come out otherwise.
    least, most : float
        What it can be.
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
    """Tell which members' credits differ by more than luck, ``[n, n]``."""
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
    """Return who is alike, as the module says: each member with a share is in one group."""
    alike: list[list[int]] = []
    for i in sorted(np.flatnonzero(values > 0), key=lambda i: (-values[i], i)):
        if alike and not apart[i, alike[-1]].any():
            alike[-1].append(int(i))
        else:
            alike.append([int(i)])
    return alike


@lru_cache(maxsize=64)
def _range(members: int, degrees: int) -> float:
    return float(studentized_range.ppf(CONFIDENCE, max(members, 2), degrees))


def kinds_of_luck(records: RunRecords, is_drawn: bool, draws: Array | None = None) -> list[Luck]:
    """Return the kinds of luck of members' sums, or with ``draws`` of their means per draw.

    Where contributions are not split by held-out examples, and nobody was drawn, they are about
    other rounds. Fewer than five rounds tell nothing.
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
    """Return how sums over blocks of held-out examples, or their means per draw, may differ."""
    weights = records.block_weights
    parts = [
        SplitContribution(part.client_id, part.contribution, part.credited, part.by_block)
        for part in records.parts
    ]
    contributed, credited = block_sums(parts, list(records.members), len(weights))
    if draws is not None:
        contributed = contributed / draws
        credited = credited / draws
    return of_blocks(EXAMPLES, [contributed, credited], weights)


def _luck_of_rounds(about: str, records: RunRecords) -> Luck:
    """Return how sums over rounds, each of the same weight, may differ."""
    rounds = len(records.rounds)
    return of_blocks(about, records.by_round, [1 / rounds] * rounds)
