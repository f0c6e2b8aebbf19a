"""How far contributions depend on which rounds there were, and on which held-out examples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

RESAMPLES = 2000
CONFIDENCE = 0.95
MIN_ROUNDS = 5  # Fewer rounds say nothing about how much depends on the rounds.


def intervals(per_round: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return 95 % bootstrap intervals of the members' sums, over rounds.

    All T rounds are drawn again with replacement, 2,000 times, whole: a round in which a member
    had no part counts 0 for it. So a member drawn once has an interval from 0 to about three times
    its contribution: in a third of the drawings its round is not there. The seed is fixed: whoever
    has the records gets the same interval.

    Parameters
    ----------
    per_round : NDArray
        ``[T, n]``.

    Returns
    -------
    NDArray or None
        ``[n, 2]``; ``None`` with fewer than 5 rounds, which cannot tell.
    """
    rounds = per_round.shape[0]
    if rounds < MIN_ROUNDS:
        return None
    generator = np.random.default_rng(0)
    drawn = generator.multinomial(rounds, np.full(rounds, 1 / rounds), size=RESAMPLES)  # [B, T]
    sums = drawn.astype(np.float64) @ per_round  # [B, n]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(sums, [tail, 1 - tail], axis=0, method="inverted_cdf")
    return np.stack([low, high], axis=1) + 0.0


def half_widths(by_block: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return half the widths of 95 % intervals for another held-out set of the same size, ``[n]``.

    .. math:: t_{b-1} \sqrt{\frac{1}{b} \sum_k \frac{1 - W_k}{W_k} (c_{(k)} - c)^2}, \qquad
              c_{(k)} = \frac{c - c_k}{1 - W_k}

    with :math:`c = \sum_k c_k` a sum over b blocks, :math:`c_{(k)}` what it would be without block
    k, and :math:`t_{b-1}` the .975 quantile of Student's t. A difference between two members is the
    sum of its blocks' differences: it is given as one more column.

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
    blocks, own = len(weights), weights[:, None]
    total = by_block.sum(axis=0)
    moved = (total - by_block) / (1 - own) - total  # [b, n]
    variance = ((1 - own) / own * moved**2).sum(axis=0) / blocks
    widths: NDArray[np.float64] = t.ppf((1 + CONFIDENCE) / 2, blocks - 1) * np.sqrt(variance)
    return widths


def share_half_widths(
    credited: NDArray[np.float64], contributed: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    r"""Return the same of shares, by the delta method, ``[n]``.

    .. math:: s_i = \hat c_i^+ / D, \qquad
              D = \max\Big(\sum_j \hat c_j^+, \sum_j c_j\Big), \qquad
              \mathrm{d} s_i = (\mathrm{d} \hat c_i^+ - s_i\, \mathrm{d} D) / D

    A member without a share has the width 0. All shares together move by nothing where all of the
    gain is paid.

    Parameters
    ----------
    credited, contributed : NDArray
        ``[b, n]``: what is credited, and contributed, by block; some credit's sum is positive.
    weights : NDArray
        ``[b]``.
    """
    paid = credited * (credited.sum(axis=0) > 0)
    together = paid.sum(axis=1), contributed.sum(axis=1)
    whole = max(together, key=lambda by_block: float(by_block.sum()))  # [b]
    gained = float(whole.sum())
    shares = paid.sum(axis=0) / gained
    return half_widths((paid - shares * whole[:, None]) / gained, weights)
