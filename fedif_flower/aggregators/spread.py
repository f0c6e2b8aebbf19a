"""Values bounded by the clients' own spread: batch-norm statistics, which no score looks at."""

from __future__ import annotations

import torch
from torch import Tensor

# 3.4 standard deviations where clients are normally distributed: honest ones stay as they are.
MULTIPLE = 5.0

# Changes of one block of coordinates stay in the cache between two passes over them.
_BLOCK = 1 << 16


def bound_by_spread(changes: Tensor, multiple: float = MULTIPLE) -> None:
    r"""Replace outliers by the median, coordinate by coordinate, in place.

    .. math:: \delta_i \leftarrow c \text{ if } |\delta_i - c| > k s, \qquad
              c = \mathrm{median}(\delta), \quad s = \mathrm{median}(|\delta - c|)

    with :math:`\delta_i` client i's change and k the multiple. Both medians are over the clients'
    changes and one more vote, for no change. Fewer than half of the clients cannot move the bounds
    beyond the others' values. Where most clients change nothing (frozen parameters, constants),
    nothing changes.

    Parameters
    ----------
    changes : Tensor
        ``[m, b]``, finite; overwritten.
    multiple : float
        k, >= 2: a client alone is then never bounded.

    References
    ----------
    Hampel, *The Influence Curve and Its Role in Robust Estimation*, 1974: outliers by the median
    absolute deviation.
    """
    for block in torch.split(changes, _BLOCK, dim=1):
        changed = block.any(dim=0)  # By coordinate.
        if not bool(changed.any()):
            continue
        columns = block[:, changed]  # [m, c]
        votes = torch.cat([columns, torch.zeros_like(columns[:1])])  # [m + 1, c]
        center = _median(votes)
        reach = multiple * _median((votes - center).abs())
        # To the median, not the edge: a client far out everywhere would be at every edge at once.
        block[:, changed] = torch.where((columns - center).abs() > reach, center, columns)


def _median(values: Tensor) -> Tensor:
    """Return the median over the rows: the mean of the middle two if their number is even."""
    ordered = values.sort(dim=0).values
    last = len(values) - 1
    return (ordered[last // 2] + ordered[(last + 1) // 2]) / 2
