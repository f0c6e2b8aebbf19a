"""Bound batch-norm statistics, which no score looks at, by their spread among the clients."""

from __future__ import annotations

import torch
from torch import Tensor

# k: five median absolute deviations are 3.4 standard deviations of a normal distribution, so that
# the values of honest clients are hardly ever replaced.
MULTIPLE = 5.0

# Coordinates in a block: few enough to stay in the cache from one pass over them to the next.
_BLOCK = 1 << 16


def bound_by_spread(changes: Tensor, multiple: float = MULTIPLE) -> None:
    r"""Replace outliers among the clients by the median, coordinate by coordinate, in place.

    .. math:: \delta_i \leftarrow c \text{ if } |\delta_i - c| > k s, \qquad
              c = \mathrm{median}(\delta), \quad s = \mathrm{median}(|\delta - c|)

    with :math:`\delta_i` client i's change of a coordinate and k the multiple. Both medians are
    taken over m + 1 votes: the clients' changes and one vote of 0, for no change. Fewer than half
    of the clients cannot move the bounds beyond the others' values. A coordinate that most clients
    leave as it is (frozen parameters, constants) stays as it is for all of them.

    Parameters
    ----------
    changes : Tensor
        ``[m, b]``, finite: a row for each client; overwritten.
    multiple : float
        k >= 2. The only client of a round (m = 1) is then never bounded.

    References
    ----------
    Hampel, *The Influence Curve and Its Role in Robust Estimation*, 1974: outliers by the median
    absolute deviation.
    """
    for block in torch.split(changes, _BLOCK, dim=1):
        changed = block.any(dim=0)  # Which coordinates any client changed.
        if not bool(changed.any()):
            continue
        columns = block[:, changed]  # [m, c]
        votes = torch.cat([columns, torch.zeros_like(columns[:1])])  # [m + 1, c]
        center = _median(votes)
        reach = multiple * _median((votes - center).abs())
        # Outliers become the median, not the bound: a client that is far out in every coordinate
        # would otherwise be at the bound in all of them at once.
        block[:, changed] = torch.where((columns - center).abs() > reach, center, columns)


def _median(values: Tensor) -> Tensor:
    """Return the median over the rows: the mean of the middle two if the number is even."""
    ordered = values.sort(dim=0).values
    last = len(values) - 1
    return (ordered[last // 2] + ordered[(last + 1) // 2]) / 2
