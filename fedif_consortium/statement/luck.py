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
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import studentized_range

from fedif_consortium.statement.records import RunRecords
from fedif_flower.attribution.intervals import (
    CONFIDENCE,
    MIN_ROUNDS,
    block_sums,
    deviations,
    quantile,
)

Array = NDArray[np.float64]
EXAMPLES, DRAW = "another held-out set of the same size", "another draw of members"
ROUNDS, BOTH = "other rounds", "both"


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
    contributed, credited = (deviations(of, np.array(weights)) for of in values)
    return Luck(about, contributed, credited, len(weights) - 1)


def of_draws(values: Array, draws: Array) -> Luck:
    r"""Return the luck of means per draw: ``[2, T, n]``, and how often members were drawn.

    A member drawn a times has the standard error :math:`\sqrt{\sum_t (c_t - \bar c)^2 / (a (a-1))}`
    with a - 1 degrees of freedom. Who was drawn once might as well have contributed nothing.
    """
    rounds, more = values.shape[1], np.maximum(draws - 1, 1.0)
    wider = np.array([quantile(degrees) for degrees in more]) / quantile(rounds - 1)
    means = values.sum(axis=1) / draws  # [2, n]
    squares = np.maximum((values**2).sum(axis=1) - draws * means**2, 0.0)
    errors = np.where(draws > 1, wider * np.sqrt(squares / (draws * more)), np.abs(means))
    contributed, credited = map(np.diag, errors)
    return Luck(DRAW, contributed, credited, rounds - 1)


def between(
    values: Array, kinds: Sequence[Luck], least: float = -math.inf, most: float = math.inf
) -> list[tuple[Between, ...]]:
    """Return each value's intervals: one for each kind of luck, and of two, that of both.

    Parameters
    ----------
    values : NDArray
        ``[n]``: what was contributed.
    kinds : sequence of Luck
        By how much that could have come out otherwise.
    least, most : float
        What it can be.
    """
    widths = {
        kind.about: quantile(kind.degrees) * np.linalg.norm(kind.contributed, axis=0)
        for kind in kinds
    }
    if len(widths) > 1:
        widths[BOTH] = np.sqrt(sum(own**2 for own in widths.values()))
    ends = {
        about: np.stack([values - own, values + own], axis=1).clip(least, most) + 0.0
        for about, own in widths.items()
    }
    return [
        tuple(Between(about, *own[i].tolist()) for about, own in ends.items())
        for i in range(len(values))
    ]


def told_apart(values: Array, lucks: Sequence[Luck]) -> NDArray[np.bool_]:
    """Tell which members' credits differ by more than luck, ``[n, n]``."""
    squares = np.zeros((len(values), len(values)))
    for luck in lucks:
        z = luck.credited
        gram = z.T @ z
        own = np.diag(gram)
        squares += _range(len(values), luck.degrees) ** 2 / 2 * (own + own[:, None] - 2 * gram)
    apart: NDArray[np.bool_] = np.abs(values - values[:, None]) > np.sqrt(np.maximum(squares, 0.0))
    return apart


def groups(values: Array, apart: NDArray[np.bool_]) -> list[list[int]]:
    """Return who is alike, as the module says: each member with a share is in one group."""
    found: list[list[int]] = []
    for i in sorted(np.flatnonzero(values > 0), key=lambda i: (-values[i], i)):
        if found and not apart[i, found[-1]].any():
            found[-1].append(int(i))
        else:
            found.append([int(i)])
    return found


@lru_cache(maxsize=64)
def _range(members: int, degrees: int) -> float:
    return float(studentized_range.ppf(CONFIDENCE, max(members, 2), degrees))


def kinds_of_luck(records: RunRecords, is_drawn: bool, draws: Array | None = None) -> list[Luck]:
    """Return the kinds of luck of members' sums, or with ``draws`` of their means per draw.

    Where contributions are not split by held-out examples, and nobody was drawn, they are about
    other rounds. Fewer than five rounds tell nothing.
    """
    found, rounds = list[Luck](), len(records.rounds)
    if rounds < MIN_ROUNDS:
        return found
    if weights := records.block_weights:
        parts = ((p.client_id, p.contribution, p.credited, p.by_block) for p in records.parts)
        sums = block_sums(parts, list(records.members), len(weights))
        over = 1.0 if draws is None else draws
        found.append(of_blocks(EXAMPLES, [of / over for of in sums], weights))
    if is_drawn or not weights:
        about, equal = DRAW if is_drawn else ROUNDS, [1 / rounds] * rounds
        sums_of_rounds = of_blocks(about, records.by_round, equal)
        found.append(sums_of_rounds if draws is None else of_draws(records.by_round, draws))
    return found
