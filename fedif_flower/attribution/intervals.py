"""How far contributions depend on the rounds that were played, and on the held-out examples.

Every contribution is a sum over blocks, either of held-out examples or of rounds. A jackknife
leaves out one block after another, and tells from the sums without it how uncertain the whole sum
is. For figures that depend on contributions, such as shares or differences, it does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

CONFIDENCE = 0.95
MIN_ROUNDS = 5  # Fewer rounds say nothing about how much depends on the rounds.


def quantile(degrees: float) -> float:
    """Return how many standard errors a 95 % interval reaches to each side.

    Parameters
    ----------
    degrees : float
        The degrees of freedom of Student's t distribution.
    """
    return float(t.ppf((1 + CONFIDENCE) / 2, degrees))


def intervals(per_round: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return 95 % intervals of the members' sums over rounds, had there been other rounds.

    A member that was drawn in one round only has an interval that includes 0: in other rounds it
    might not have been drawn at all.

    Parameters
    ----------
    per_round : NDArray
        ``[T, n]``: each member's contribution in each round; 0 where it took no part.

    Returns
    -------
    NDArray or None
        ``[n, 2]``: the ends; ``None`` with fewer than 5 rounds, which are too few to tell.
    """
    rounds = len(per_round)
    if rounds < MIN_ROUNDS:
        return None
    return ends_of(per_round, np.full(rounds, 1 / rounds))


def ends_of(by_block: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ends ``[n, 2]`` of 95 % intervals of the sums over blocks.

    Parameters
    ----------
    by_block, weights : NDArray
        ``[b, n]`` and ``[b]``, as :func:`deviations` takes them.
    """
    totals = by_block.sum(axis=0)  # [n]
    widths = half_widths(by_block, weights)  # [n]
    # Adding 0 turns -0 into 0.
    return np.stack([totals - widths, totals + widths], axis=1) + 0.0


class SplitContribution(NamedTuple):
    """A client's contribution to a round, the credited part of it, and its split by block."""

    client_id: int
    contribution: float
    credited: float
    by_block: Sequence[float]


def block_sums(
    parts: Iterable[SplitContribution], members: Sequence[int], blocks: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return members' contributions and credits by block, ``[b, n]`` each, summed over rounds.

    :func:`split_credit` splits the credits. Where a credit is no share of its contribution, all
    blocks lose the same amount.

    Parameters
    ----------
    parts : iterable of SplitContribution
        One for each client in each round.
    members : sequence of int
        The n client ids, in the order of the columns.
    blocks : int
        The number b of blocks.
    """
    place = {client_id: column for column, client_id in enumerate(members)}
    contributed_sums = np.zeros((blocks, len(place)))
    credited_sums = np.zeros((blocks, len(place)))
    for part in parts:
        contributed_by_block = np.array(part.by_block)  # [b]
        lost_by_block = (part.credited - part.contribution) / blocks
        column = place[part.client_id]
        contributed_sums[:, column] += contributed_by_block
        credited_sums[:, column] += split_credit(
            part.contribution, part.credited, contributed_by_block, lost_by_block
        )
    return contributed_sums, credited_sums


def split_credit(
    contribution: float,
    credited: float,
    parts: NDArray[np.float64],
    lost: float | NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the credit for each part of a contribution, ``[k]``.

    Each part is credited with the same share as the whole. That works only where the credit is
    between 0 and the contribution. Elsewhere ``lost`` is added to each part: the share of a
    contribution of nearly 0 could be any multiple.

    Parameters
    ----------
    contribution, credited : float
        The whole contribution, and what is credited for it.
    parts : NDArray
        ``[k]``: the contribution by block or by class; the parts sum to it.
    lost : float or NDArray
        What is added to each part in the second case, usually negative: ``[k]``, or the same for
        all parts. It sums to ``credited - contribution``.
    """
    if contribution:
        share = credited / contribution
        if 0 <= share <= 1:
            return share * parts
    return parts + lost


def deviations(by_block: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return how each sum changes without each block, scaled so that squares add up to variances.

    .. math:: z_k = \sqrt{\frac{1 - W_k}{b\,W_k}}\; (c_{(k)} - c), \qquad
              c_{(k)} = \frac{c - c_k}{1 - W_k}

    with :math:`c = \sum_k c_k` a sum over b blocks and :math:`c_{(k)}` the estimate of it without
    block k. The result is ``[b, n]``, and :math:`\sum_k z_k^2` estimates the variance of c.
    Deviations are linear in the blocks: those of a difference of two sums are the differences.

    Parameters
    ----------
    by_block : NDArray
        ``[b, n]``: :math:`c_k` of n sums, b >= 2.
    weights : NDArray
        ``[b]``: :math:`W_k`, each block's share of the examples (or of the rounds), > 0; they sum
        to 1.

    References
    ----------
    Tukey, 1958; Busing, Meijer and van der Leeden, "Delete-m Jackknife for Unequal m", 1999.
    """
    column = weights[:, None]  # W [b, 1]
    total = by_block.sum(axis=0)  # c [n]
    change_without = (total - by_block) / (1 - column) - total  # c_(k) - c [b, n]
    scales = np.sqrt((1 - column) / column / len(weights))  # [b, 1]
    scaled: NDArray[np.float64] = scales * change_without
    return scaled


def half_widths(by_block: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return half the widths of 95 % intervals for another held-out set of the same size, ``[n]``.

    .. math:: t_{b-1} \sqrt{\textstyle\sum_k z_k^2}

    with :math:`t_{b-1}` the .975 quantile of Student's t distribution and :math:`z_k` the
    :func:`deviations`, which takes the same arguments.
    """
    return _half_widths(deviations(by_block, weights))


def share_half_widths(
    credited: NDArray[np.float64], contributed: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return half the widths of 95 % intervals of members' shares, ``[n]``.

    See :func:`share_deviations` for the shares.

    Parameters
    ----------
    credited, contributed : NDArray
        ``[b, n]``: credits and contributions by block; at least one member's credits have a
        positive sum.
    weights : NDArray
        ``[b]``, as :func:`deviations` takes them.
    """
    changes = share_deviations(
        credited.sum(axis=0),
        contributed.sum(axis=0),
        deviations(credited, weights),
        deviations(contributed, weights),
    )
    return _half_widths(changes)


def share_deviations(
    credited: NDArray[np.float64],
    contributed: NDArray[np.float64],
    of_credited: NDArray[np.float64],
    of_contributed: NDArray[np.float64],
) -> NDArray[np.float64]:
    r"""Return how shares change with credits and contributions, by the delta method, ``[k, n]``.

    .. math:: s_i = \hat c_i^+ / D, \qquad
              D = \max\Big(\sum_j \hat c_j^+, \sum_j c_j\Big), \qquad
              \mathrm{d} s_i = (\mathrm{d} \hat c_i^+ - s_i\, \mathrm{d} D) / D

    with :math:`c_i` member i's contribution, :math:`\hat c_i` its credit, and
    :math:`x^+ = \max(x, 0)`. A share of 0 does not change. Where D is the sum of the credits, the
    changes of all shares add up to 0.

    Parameters
    ----------
    credited, contributed : NDArray
        ``[n]``: :math:`\hat c` and c; at least one credit is positive.
    of_credited, of_contributed : NDArray
        ``[k, n]``: the :func:`deviations` of the two.
    """
    is_paid = credited > 0
    paid = credited * is_paid  # [n]
    paid_changes = of_credited * is_paid  # [k, n]
    # D: the sum of the contributions, or of the positive credits where that is larger.
    if contributed.sum() > paid.sum():
        gained = contributed.sum()
        gained_changes = of_contributed.sum(axis=1)  # [k]
    else:
        gained = paid.sum()
        gained_changes = paid_changes.sum(axis=1)  # [k]
    shares = paid / gained  # [n]
    changes: NDArray[np.float64] = (paid_changes - shares * gained_changes[:, None]) / gained
    return changes


def _half_widths(changes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return half the widths of 95 % intervals ``[n]`` from deviations ``[b, n]``."""
    errors: NDArray[np.float64] = np.linalg.norm(changes, axis=0)
    return quantile(len(changes) - 1) * errors
