"""Median and trimmed mean, coordinate by coordinate."""

from __future__ import annotations

from torch import Tensor

from fedif_flower.errors import ValuationError


def coordinate_median(updates: Tensor) -> Tensor:
    """Return the median of each coordinate, of an even number the mean of the middle two.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, m >= 1, finite.

    Returns
    -------
    Tensor
        ``[d]``, same dtype.

    References
    ----------
    Yin et al., 2018 (Byzantine-robust distributed learning), definition 1.
    """
    return trimmed_mean(updates, (len(updates) - 1) // 2)


def trimmed_mean(updates: Tensor, num_trimmed: int) -> Tensor:
    """Return the mean of each coordinate without its ``num_trimmed`` least and largest values.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, finite.
    num_trimmed : int
        f in [0, (m - 1) / 2].

    Returns
    -------
    Tensor
        ``[d]``, same dtype.

    Raises
    ------
    ValuationError
        If nothing would be left.

    References
    ----------
    Yin et al., 2018 (Byzantine-robust distributed learning), definition 2.
    """
    m = len(updates)
    if not 0 <= 2 * num_trimmed < m:
        raise ValuationError(f"num_trimmed is {num_trimmed}; allowed: 0 to {(m - 1) // 2}")
    if not num_trimmed:
        return updates.mean(dim=0)
    ordered = updates.sort(dim=0).values  # [m, d]
    return ordered[num_trimmed : m - num_trimmed].mean(dim=0)
