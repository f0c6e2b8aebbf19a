"""Which rounds took a step back, as a run's records and kept steps tell."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from fedif_consortium.statement.records import RoundLoss, RunRecords
from fedif_flower.server.record import Step


def rounds_taken_back(records: RunRecords, steps: Mapping[int, Step]) -> set[int]:
    """Return the rounds that took the last step back, be it their own or that of an earlier round.

    After such a round the model is the one from before that step.

    Parameters
    ----------
    records : RunRecords
        The run's records.
    steps : mapping of int to Step
        The kept step of each round that made one.
    """
    with_contributions = {line.round for line in records.member_rounds}
    first_step = min(steps, default=math.inf)
    taken_back = set()
    for row in records.rounds:
        step = steps.get(row.round)
        has_contributions = row.round in with_contributions
        is_like_one = _was_taken_back(row, step, has_contributions=has_contributions)
        if step is not None and not _has_finite_end(row):
            # A step from one model without a finite loss to another has no contributions either, so
            # the records alone do not tell whether it was taken back. The next step does.
            is_like_one = is_like_one and _is_left_out_after(step, steps)
        if is_like_one and row.round >= first_step:
            taken_back.add(row.round)
    return taken_back


def _was_taken_back(row: RoundLoss, step: Step | None, *, has_contributions: bool) -> bool:
    """Return whether a round looks as if it had taken the last step back.

    A round without a step of its own took an earlier step back if it has contributions, which are
    those of that step with the other sign. It also did if the loss changed in it: a step that led
    to no finite loss has no contributions that could be taken back.

    A round with a step of its own took that step back if it has no contributions, and the loss is
    the same before and after it.
    """
    is_same_loss = row.loss_before == row.loss_after or not _has_finite_end(row)
    if step is None:
        return has_contributions or not is_same_loss
    return not has_contributions and is_same_loss


def _has_finite_end(row: RoundLoss) -> bool:
    """Return whether a round begins or ends with a finite loss."""
    return math.isfinite(row.loss_before) or math.isfinite(row.loss_after)


def _is_left_out_after(step: Step, steps: Mapping[int, Step]) -> bool:
    """Return whether the next step begins with the model with which this step began.

    For the last step of all, which no other follows, it is true.
    """
    later = [number for number in steps if number > step.updates.server_round]
    if not later:
        return True
    following = steps[min(later)]
    return torch.equal(following.before.params, step.before.params)
