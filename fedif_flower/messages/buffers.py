"""What a reply may change beside parameters: counters advance, indices stay, variances are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedif_flower.errors import ReplyError

# Batch normalisation's count of training steps: known by name, so that clients may leave it alone.
COUNTER_NAMES = frozenset({"num_batches_tracked"})
# No client takes more steps in one round, and int64 holds nine billion such rounds.
MAX_ADVANCE = 10**9
# Clients' data differ in size, and so do their steps.
MAX_TIMES_MEDIAN = 100
# No round of training does more, even from fresh statistics (1) on raw pixels (about 10^4).
MAX_VARIANCE_GROWTH = 1e6


def measure_advance(name: str, received: NDArray[np.generic], returned: NDArray[np.generic]) -> int:
    """Return the largest advance of any element; 0 if the array is as it was.

    Parameters
    ----------
    name : str
        The array's, for the error.
    received, returned : NDArray
        The array as the server sent it and as the client returned it, of one shape.

    Raises
    ------
    ReplyError
        If an element went back, advanced by more than ``MAX_ADVANCE``, or is no integer.
    """
    if np.array_equal(received, returned):
        return 0
    if received.dtype.kind not in "biu":
        raise ReplyError(f"array {name!r} of {received.dtype} was changed")
    if np.less(returned, received).any():
        raise ReplyError(f"integer array {name!r} went back: no counter does")
    # Differences of 64-bit integers are exact modulo 2^64, and none is negative here.
    advance = int((returned.astype(np.uint64) - received.astype(np.uint64)).max())
    if advance > MAX_ADVANCE:
        raise ReplyError(f"integer array {name!r} advances by {advance}, beyond {MAX_ADVANCE}")
    return advance


def refuse_advances(advances: Sequence[Mapping[str, int]]) -> dict[int, str]:
    """Return the replies whose integer arrays no honest client would send, with the reason.

    An array that more than half of the replies advance is a counter, and so is one that is known
    by name; any other is an index, which stays as it was. No reply may advance a counter by more
    than ``MAX_TIMES_MEDIAN`` times the (lower) median of those that advance it.

    Parameters
    ----------
    advances : sequence of mapping of str to int
        For each reply, the arrays that it changed and by how much, > 0.

    Returns
    -------
    dict of int to str
        Reasons by position in ``advances``.
    """
    reasons: dict[int, str] = {}
    for name in sorted({name for own in advances for name in own}):
        moved = sorted(own[name] for own in advances if name in own)
        is_counter = name.rpartition(".")[2] in COUNTER_NAMES or 2 * len(moved) > len(advances)
        median = moved[(len(moved) - 1) // 2]
        for position, own in enumerate(advances):
            step = own.get(name, 0)
            if step and not is_counter:
                reason = f"integer array {name!r} was changed, which most replies left as it was"
                reasons.setdefault(position, reason)
            elif step > MAX_TIMES_MEDIAN * median:
                reason = f"integer array {name!r} advances by {step}; the median is {median}"
                reasons.setdefault(position, reason)
    return reasons


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
    smallest, largest = float(returned.min(initial=np.inf)), float(returned.max(initial=-np.inf))
    if smallest < 0 or largest > MAX_VARIANCE_GROWTH * max(1.0, sent):
        raise ReplyError(
            f"array {name!r} has variances from {smallest:g} to {largest:g}, where the model sent "
            f"had at most {sent:g}"
        )
