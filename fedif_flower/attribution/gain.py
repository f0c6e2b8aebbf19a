"""By how much a run lowered the validation loss, between its ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def first_and_last_loss(losses: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the first finite loss of a run, and the one that it ended with; ``None``: no such.

    Parameters
    ----------
    losses : sequence of float
        Before the first round and after each, one or more; ``None``: not known.
    """
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if not finite:
        return None, None
    last = losses[-1]
    if last is None or not math.isfinite(last):
        return finite[0], None
    return finite[0], last


def gain_of(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return by how much the validation loss fell over a run, and how much of that is nobody's.

    The fall is the one between the run's ends. Those of its rounds need not add up to it: a round
    that begins or ends without a finite loss has none, and what happens to the model between two
    rounds, as noise that a wrapper adds, is in no round. ``None``: the run ended without a finite
    loss, or never had one.

    Parameters
    ----------
    rounds : sequence of mapping
        Lines of ``attribution_rounds.csv``, one or more.
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
