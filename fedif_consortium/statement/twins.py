"""Members that contribute the same: one has a copy of another's data, or sends its update."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIN_SHARED = 5  # Rounds in which both contributed.
TOLERANCE = 1e-4  # Relative: what rounding makes of equal updates, and no more.


def have_twins(per_round: NDArray[np.float64]) -> NDArray[np.bool_]:
    r"""Tell which members contribute the same as another in every round that both have a part in.

    .. math:: |c_i(t) - c_j(t)| \le 10^{-4} |c_i(t)| \text{ in every round } t
              \text{ with } c_i(t) \ne 0 \ne c_j(t)

    for some other member j, in at least five rounds. Two members whose data are merely alike
    differ by percents. A copy that trains in another order, or adds noise, differs as well: it is
    not found.

    Parameters
    ----------
    per_round : NDArray
        ``[T, n]``: contributions :math:`c_i(t)`, 0 where a member had no part.

    Returns
    -------
    NDArray of bool
        ``[n]``.
    """
    has_part = per_round != 0
    found = np.zeros(per_round.shape[1], dtype=bool)
    for i, own in enumerate(per_round.T):
        shared = has_part & has_part[:, [i]]  # [T, n]
        with np.errstate(invalid="ignore", over="ignore"):
            differs = np.abs(per_round - own[:, None]) > TOLERANCE * np.abs(own[:, None])
        same = (shared.sum(0) >= MIN_SHARED) & ~(shared & differs).any(0)
        same[i] = False
        found[i] = same.any()
    return found
