"""How far contributions depend on which rounds there were, and on which held-out examples.

Every figure here is a sum over blocks: of held-out examples, or of rounds. What the sum would be
without one of them tells how much is luck (a jackknife). What depends on the figures, such as
shares or differences, moves as they do.
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
    """Return by which multiple of its standard error a 95 % interval reaches to each side."""
    return float(t.ppf((1 + CONFIDENCE) / 2, degrees))


def intervals(per_round: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return 95 % intervals of the members' sums, with other rounds.

    A round in which a member had no part counts 0 for it. So a member drawn once has an interval
    that includes 0: another time it might not have been drawn.

    Parameters
    ----------
    per_round : NDArray
        ``[T, n]``.

    Returns
    -------
    NDArray or None
        ``[n, 2]``; ``None`` with fewer than 5 rounds, which cannot tell.
    """
    rounds = len(per_round)
    if rounds < MIN_ROUNDS:
        return None
    return ends_of(per_round, np.full(rounds, 1 / rounds))


def ends_of(by_block: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ends ``[n, 2]`` of 95 % intervals of sums over blocks; see :func:`half_widths`."""
    totals = by_block.sum(axis=0)  # [n]
    widths = half_widths(by_block, weights)  # [n]
    # Adding 0 turns -0 into 0.
    return np.stack([totals - widths, totals + widths], axis=1) + 0.0


class SplitContribution(NamedTuple):
    """What a client contributed to a round, what of it is credited, and its parts by block."""

    client_id: int
    contribution: float
    credited: float
    by_block: Sequence[float]


def block_sums(
    parts: Iterable[SplitContribution], members: Sequence[int], blocks: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what members contributed, and are credited with, by block, ``[b, n]`` each.

    How a credit is split: :func:`split_credit`, where all blocks lose alike.

    Parameters
    ----------
    parts : iterable of SplitContribution
        One for each client in each round.
    members : sequence of int
        Client ids, in the order of the columns.
    blocks : int
        b.
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
    """Return what is credited of each part of a contribution, ``[k]``.

    Of each part the same share is credited as of the whole. Where what is credited is no share of
    it, below 0 or a larger loss, the parts lose what they are told: of a contribution that is
    nearly 0, the share would be a multiple without limit.

    Parameters
    ----------
    contribution, credited : float
        The whole, and what of it is credited.
    parts : NDArray
        ``[k]``: by block or by class; they sum to the contribution.
    lost : float or NDArray
        What each part loses in that case, ``[k]`` or the same for all.
    """
    if contribution:
        share = credited / contribution
        if 0 <= share <= 1:
            return share * parts
    return parts + lost


def deviations(by_block: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return how a sum moves without each block, ``[b, n]``: its squares add up to its variance.

    .. math:: z_k = \sqrt{\frac{1 - W_k}{b\,W_k}}\; (c_{(k)} - c), \qquad
              c_{(k)} = \frac{c - c_k}{1 - W_k}

    with :math:`c = \sum_k c_k` a sum over b blocks and :math:`c_{(k)}` what it would be without
    block k. They are linear in the blocks: those of a difference are the differences.

    Parameters
    ----------
    by_block : NDArray
        ``[b, n]``: c_k, b >= 2.
    weights : NDArray
        ``[b]``: :math:`W_k`, each block's part of the examples, > 0; they sum to 1.

    References
    ----------
    Tukey, 1958; Busing, Meijer and van der Leeden, "Delete-m Jackknife for Unequal m", 1999.
    """
    shares = weights[:, None]  # W [b, 1]
    total = by_block.sum(axis=0)  # c [n]
    change_without = (total - by_block) / (1 - shares) - total  # c_(k) - c [b, n]
    scales = np.sqrt((1 - shares) / shares / len(weights))  # [b, 1]
    scaled: NDArray[np.float64] = scales * change_without
    return scaled


def half_widths(by_block: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return half the widths of 95 % intervals for another held-out set of the same size, ``[n]``.

    .. math:: t_{b-1} \sqrt{\textstyle\sum_k z_k^2}

    with :math:`t_{b-1}` the .975 quantile of Student's t; see :func:`deviations` for z and what is
    given.
    """
    return _half_widths(deviations(by_block, weights))


def share_half_widths(
    credited: NDArray[np.float64], contributed: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the same of shares, ``[n]``; see :func:`share_deviations`.

    Parameters
    ----------
    credited, contributed : NDArray
        ``[b, n]``: what is credited, and contributed, by block; some credit's sum is positive.
    weights : NDArray
        ``[b]``.
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
    r"""Return how shares move where credits and contributions do, by the delta method, ``[k, n]``.

    .. math:: s_i = \hat c_i^+ / D, \qquad
              D = \max\Big(\sum_j \hat c_j^+, \sum_j c_j\Big), \qquad
              \mathrm{d} s_i = (\mathrm{d} \hat c_i^+ - s_i\, \mathrm{d} D) / D

    A member without a share does not move. All shares together move by nothing where all of the
    gain is paid.

    Parameters
    ----------
    credited, contributed : NDArray
        ``[n]``; some credit is positive.
    of_credited, of_contributed : NDArray
        ``[k, n]``: their deviations.
    """
    is_paid = credited > 0
    paid = credited * is_paid  # [n]
    paid_changes = of_credited * is_paid  # [k, n]
    # D is what was gained, or what is paid where that is more.
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
    errors: NDArray[np.float64] = np.linalg.norm(changes, axis=0)
    return quantile(len(changes) - 1) * errors
