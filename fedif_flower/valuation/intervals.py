"""How far a sum over rounds depends on which rounds there were."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
