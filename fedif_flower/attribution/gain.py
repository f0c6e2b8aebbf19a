"""By how much the validation loss fell over a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def first_and_last_loss(losses: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the first finite loss of a run, and the loss that the run ended with.

    Parameters
    ----------
    losses : sequence of float
        The losses before the first round and after each round, one or more; ``None``: not known.

    Returns
    -------
    first : float or None
        ``None``: no loss is finite.
    last : float or None
        ``None``: the last loss is not finite, or not known.
    """
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if not finite:
        return None, None
    last = losses[-1]
    if last is None or not math.isfinite(last):
        return finite[0], None
    return finite[0], last


def gain_of(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return by how much the validation loss fell over a run, and how much of this is nobody's.

    The fall is measured between the start and the end of the run. The falls of single rounds need
    not add up to it: a round that begins or ends without a finite loss has no fall, and changes of
    the model between two rounds, such as noise that a wrapper adds, belong to no round.

    Parameters
    ----------
    rounds : sequence of mapping
        Lines of ``attribution_rounds.csv``, one or more.

    Returns
    -------
    dict
        ``decrease``, the fall of the loss; ``attributed``, the sum of all contributions; and
        ``remainder``, the difference of the two. Fall and remainder are ``None`` if the run ended
        without a finite loss, or never had one.
    """
    losses = [rounds[0]["loss_before"]]
    losses += [row["loss_after"] for row in rounds]
    first, last = first_and_last_loss(losses)
    attributed = math.fsum(row["attributed"] for row in rounds)
    decrease: float | None = None
    remainder: float | None = None
    if first is not None and last is not None:
        decrease = first - last
        remainder = decrease - attributed
    return {"decrease": decrease, "attributed": attributed, "remainder": remainder}
