"""The records of a run without its first rounds, which a statement may leave out."""

from __future__ import annotations

from dataclasses import replace

from fedif_consortium.statement.consistency import require_bounded_credit
from fedif_consortium.statement.records import RunRecords
from fedif_flower.errors import ConfigError, StatementError


def records_from(records: RunRecords, first_round: int) -> RunRecords:
    """Return the records without the rounds before ``first_round``; all members stay.

    Raises
    ------
    ConfigError
        If there is no such round, it lies between a step and the round that took it back, or in the
        rounds that are left a member is credited with more than it contributed.
    """
    if first_round not in range(1, len(records.rounds) + 1):
        raise ConfigError(f"from-round = {first_round}; allowed: 1 to {len(records.rounds)}")
    _require_whole_steps(records, first_round)
    without_earlier = records.without(range(first_round))
    counted = replace(
        without_earlier,
        replies=tuple(reply for reply in records.replies if reply.round >= first_round),
        lines=[line for line in records.lines if line["round"] >= first_round],
    )
    try:
        require_bounded_credit(counted)
    except StatementError as error:
        raise ConfigError(f"from-round = {first_round}: {error}") from error
    return counted


def _require_whole_steps(records: RunRecords, first_round: int) -> None:
    """Raise ConfigError if a round that counts took back the step of a round that does not."""
    between: set[int] = set()
    for later, earlier in records.taken_back.items():
        between.update(range(earlier + 1, later + 1))
    if first_round not in between:
        return
    before = first_round - 1  # The loop ends at round 1 at the latest: no step lies before it.
    while before in between:
        before -= 1
    allowed = str(before)
    after = first_round + 1
    while after in between:
        after += 1
    if after <= len(records.rounds):
        allowed = f"{before} or {after}"
    raise ConfigError(
        f"from-round = {first_round}: a step before it was taken back in this round or later, "
        f"and both count, or neither; allowed: {allowed}"
    )
