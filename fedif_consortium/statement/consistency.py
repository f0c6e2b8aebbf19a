"""Checks that a run's tables agree with each other, as far as they decide what is paid."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import compress, pairwise

import numpy as np

from fedif_consortium.statement.records import MemberRound, RoundLoss, RunRecords
from fedif_flower.errors import StatementError

# Relative differences that are allowed.
ROUNDING = 1e-9  # Sums that are added up in another order, or on another processor.
SAME_LOSS = 1e-4  # The loss of one model, measured twice.
SIX_DIGITS = 1e-5  # Sums of contributions by block, which are written with six digits.
# Sums of contributions by class, in parts of the round's largest sum of absolute values: each class
# has a gradient of its own, which is rounded.
CLASS_SLOPES = 0.01


def require_consistent(records: RunRecords) -> None:
    """Raise StatementError unless a run's tables agree, as far as they decide what is paid.

    The checks are:

    - No table was cut off.
    - The contributions to each round add up, and with the remainder they make up its fall.
    - A member's contributions by class, and those by block, add up to its contribution.
    - Each round begins at the loss at which the round before it ended.
    - No member is credited with more than it contributed.
    - No member has a part in a step before a reply of it was accepted.
    """
    _require_whole_tables(records)
    _require_senders(records)
    _require_sums(records)
    _require_class_sums(records)
    _require_block_sums(records)
    _require_chained(records.rounds, records.folder.attributed_rounds.path.name)
    require_bounded_credit(records)


def _require_whole_tables(records: RunRecords) -> None:
    """Raise StatementError if a table ends before another one, or ``clients.csv`` lacks a line."""
    run = records.folder
    rounds = len(records.rounds)
    last = max((line.round for line in records.member_rounds), default=0)
    rounds_counted = [line["round"] for line in records.lines]
    if last > rounds or rounds_counted != list(range(rounds + 1)):
        raise StatementError(
            f"{run.attribution.path.name} ends with round {last}, "
            f"{run.attributed_rounds.path.name} with {rounds}, {run.rounds.path.name} has "
            f"{len(rounds_counted) - 1}: was one cut off?"
        )
    lines_of_round = Counter(reply.round for reply in records.replies)
    for line in records.lines:
        due = line["accepted"] + line["rejected"] + line["failed"] + line["late"]
        lines = lines_of_round[line["round"]]
        if lines != due:
            raise StatementError(
                f"{run.clients.path.name} has {lines} lines of round {line['round']}, but "
                f"{run.rounds.path.name} counts {due} replies"
            )


def _require_senders(records: RunRecords) -> None:
    """Raise StatementError if a member has a part in a step before a reply of it was accepted.

    Momentum may carry an update on to later steps. Without this check, somebody who never sent an
    update, and so never signed one, could be paid.
    """
    accepted = [reply for reply in records.replies if reply.status == "accepted"]
    first_reply: dict[int, int] = {}  # The round in which it was accepted, by client id.
    for reply in sorted(accepted, key=lambda reply: reply.round, reverse=True):
        first_reply[reply.client_id] = reply.round
    for line in records.member_rounds:
        if line.round < first_reply.get(line.client_id, math.inf):
            raise StatementError(
                f"{records.folder.attribution.path.name}: client {line.client_id} has a part in "
                f"round {line.round}, and {records.folder.clients.path.name} has no reply of it "
                "that was accepted by then"
            )


def _require_sums(records: RunRecords) -> None:
    """Raise StatementError if a round's contributions, or its fall, do not add up."""
    contributed, _ = records.by_round
    for row, of_members in zip(records.rounds, contributed, strict=True):
        scale = max(abs(row.decrease), abs(row.attributed), 1e-6)
        off_members = abs(row.attributed - math.fsum(of_members))
        off_fall = abs(row.decrease - row.attributed - row.remainder)
        if max(off_members, off_fall) > 1e-6 * scale:
            name = records.folder.attributed_rounds.path.name
            raise StatementError(f"{name}: round {row.round} does not add up")


def _require_class_sums(records: RunRecords) -> None:
    """Raise StatementError if contributions by class do not add up to the contribution.

    Shares with another mix of classes are computed from them.
    """
    largest = defaultdict[int, float](float)  # By round.
    for line in records.member_rounds:
        size = math.fsum(map(abs, line.by_class))
        largest[line.round] = max(largest[line.round], size)
    for line in records.member_rounds:
        allowed = CLASS_SLOPES * largest[line.round]
        if line.by_class and _is_apart(line.by_class, line.contribution, allowed):
            raise _not_adding_up(records, line, "class")


def _require_block_sums(records: RunRecords) -> None:
    """Raise StatementError if contributions by block do not add up to the contribution.

    Intervals are computed from them.
    """
    for counted in (records, *records.at_noise_ends()):
        for line in counted.member_rounds:
            allowed = SIX_DIGITS * math.fsum(map(abs, line.by_block))
            if line.by_block and _is_apart(line.by_block, line.contribution, allowed):
                raise _not_adding_up(records, line, "block")


def _is_apart(parts: Iterable[float], whole: float, allowed: float) -> bool:
    """Return whether the sum of the parts differs from the whole by more than is allowed."""
    return abs(math.fsum(parts) - whole) > allowed + ROUNDING * abs(whole)


def _not_adding_up(records: RunRecords, line: MemberRound, split: str) -> StatementError:
    """Return the error for contributions that do not add up; ``split`` is "class" or "block"."""
    name = records.folder.attribution.path.name
    return StatementError(
        f"{name}: in round {line.round} the contributions of client {line.client_id} by {split} do "
        "not add up to its contribution"
    )


def _require_chained(rounds: Sequence[RoundLoss], name: str) -> None:
    """Raise StatementError unless each fall is that between its losses, and losses lead on.

    A round has to begin at the loss at which the round before it ended. Without this check, a
    round's fall and remainder could be made up, as long as they add up.
    """
    for row in rounds:
        expected = row.loss_before - row.loss_after
        if not math.isfinite(expected):
            expected = 0.0
        if not math.isclose(row.decrease, expected, rel_tol=ROUNDING, abs_tol=ROUNDING):
            # So many digits that what is refused is seen to differ.
            raise StatementError(
                f"{name}: round {row.round} has a fall of {row.decrease:.12g}, its losses one of "
                f"{expected:.12g}"
            )
    for before, row in pairwise(rounds):
        losses = (before.loss_after, row.loss_before)
        both_diverged = not any(map(math.isfinite, losses))
        is_same = math.isclose(before.loss_after, row.loss_before, rel_tol=SAME_LOSS)
        if not is_same and not both_diverged:
            raise StatementError(
                f"{name}: round {row.round} begins at a loss of {row.loss_before:.6g}, but round "
                f"{before.round} ended at {before.loss_after:.6g}: the table was changed, or the "
                "model was changed between the two, as by a wrapper that adds noise"
            )


def require_bounded_credit(records: RunRecords) -> None:
    """Raise StatementError if a member is credited with more than it contributed.

    The sums over all rounds are compared. In a single round the credit may be above the
    contribution: where a step is taken back, both have the other sign.
    """
    for counted in (records, *records.at_noise_ends()):
        contributed, credited = counted.by_round
        beyond = (credited - contributed).sum(axis=0)
        rounding = ROUNDING * np.abs(contributed).sum(axis=0)
        for client_id in compress(records.members, beyond > rounding):
            name = records.folder.attribution.path.name
            raise StatementError(
                f"{name}: client {client_id} is credited with more than it contributed"
            )
