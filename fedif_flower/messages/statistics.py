"""Batch norm's running statistics: known by the names torch gives them, and what they can be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedif_flower.errors import ReplyError

# No round of training does more, even from fresh statistics (1) on raw pixels (about 10^4).
MAX_VARIANCE_GROWTH = 1e6


def is_statistic(name: str) -> bool:
    """Return whether an array is a running mean or variance of batch norm."""
    return name.rpartition(".")[2] in ("running_mean", "running_var")


def is_variance(name: str) -> bool:
    """Return whether an array is a running variance of batch norm."""
    return name.rpartition(".")[2] == "running_var"


def check_variance(name: str, returned: NDArray[np.generic], sent: float) -> None:
    """Raise ReplyError if ``returned`` cannot be variances, ``sent`` being the largest before.

    The model takes their square root: a single one below 0 would make every output NaN. 0 is what
    a dead channel has.

    Parameters
    ----------
    name : str
        The array's, for the error.
    returned : NDArray
        The running variances that a client returned.
    sent : float
        The largest of those that the server sent.
    """
    smallest = float(returned.min(initial=np.inf))
    largest = float(returned.max(initial=-np.inf))
    if smallest < 0:
        raise ReplyError(f"array {name!r} has negative variances")
    if largest > MAX_VARIANCE_GROWTH * max(1.0, sent):
        raise ReplyError(
            f"array {name!r} has a variance of {largest:g}, where the model sent had {sent:g}"
        )
