"""Which rounds took the last step back, by what a run recorded and kept."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from fedif_consortium.statement.records import RoundLoss, RunRecords
from fedif_flower.server.record import Step


def rounds_taken_back(records: RunRecords, steps: Mapping[int, Step]) -> set[int]:
    """Return the rounds that took the last step back: the model was then the one before it."""
    rounds_with_parts = {part.round for part in records.parts}
    first_step = min(steps, default=math.inf)
    taken_back = set()
    for row in records.rounds:
        step = steps.get(row.round)
        has_parts = row.round in rounds_with_parts
        is_like_one = _was_taken_back(row, step, has_parts=has_parts)
        if step is not None and not _has_finite_end(row):
            # Nobody contributes to a step from one lost model to another, either.
            is_like_one = is_like_one and _is_left_out_after(step, steps)
        if is_like_one and row.round >= first_step:
            taken_back.add(row.round)
    return taken_back


def _was_taken_back(row: RoundLoss, step: Step | None, *, has_parts: bool) -> bool:
    """Tell whether a round left the model where it was before the last step.

    Without a step of its own, it took back contributions, or the loss is another one: nobody
    contributed to a step that led to no finite loss. With a step, nobody contributed to it, and
    the loss is the same.
    """
    is_same_loss = row.loss_before == row.loss_after or not _has_finite_end(row)
    if step is None:
        return has_parts or not is_same_loss
    return not has_parts and is_same_loss


def _has_finite_end(row: RoundLoss) -> bool:
    """Tell whether the loss before a round is finite, or that after it."""
    return math.isfinite(row.loss_before) or math.isfinite(row.loss_after)


def _is_left_out_after(step: Step, steps: Mapping[int, Step]) -> bool:
    """Tell whether the next step goes from where a step began; of the last one it may be so."""
    later = [number for number in steps if number > step.updates.server_round]
    if not later:
        return True
    following = steps[min(later)]
    return torch.equal(following.before.params, step.before.params)
