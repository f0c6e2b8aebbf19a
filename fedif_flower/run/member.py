"""What became of a member over a run, and in which order members are listed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from fedif_flower.messages.client_node import called


@dataclass(frozen=True)
class Member:
    """What became of a member over a run.

    Attributes
    ----------
    client_id, partition_id : int
        Its lasting id, and the part of the data that it says it holds (-1: unknown).
    name : str
        What the operator calls it; empty: nothing.
    accepted, refused, failed, away : int
        The number of its requests by what became of the reply. ``away``: no reply came, its
        node sent an error, or its registration had ended. A reply that may yet come is in none of
        the four.
    contribution : float, optional
        By how much its updates lowered the validation loss (in nats for a cross-entropy), where the
        run attributed contributions.
    low, high : float, optional
        The ends of the contribution's 95 % interval;
        :attr:`Run.interval <fedif_flower.run.results.Run>` says over what it varies.
    weight_score : float, optional
        Its weight score Omega after its last round, where the strategy has one.
    weight : float, optional
        The sum of its aggregation weights over the rounds; ``None``: the strategy gives no weights.
    malicious : bool
        Whether it is known to misbehave.
    """

    client_id: int
    partition_id: int
    name: str
    accepted: int
    refused: int
    failed: int
    away: int
    contribution: float | None
    low: float | None
    high: float | None
    weight_score: float | None
    weight: float | None
    malicious: bool

    @property
    def label(self) -> str:
        """What a table calls it."""
        return called(self.client_id, self.partition_id, self.name)


def sort_key(member: Member, column: str) -> tuple[Any, ...]:
    """Return the sort key of a member by a column: the largest value first, none or NaN last.

    By ``"name"``, members are in the order of their labels.
    """
    if column == "name":
        return _natural_order(member.label), member.client_id
    value = getattr(member, column)
    if value is None or math.isnan(value):
        return True, 0.0, member.client_id
    return False, -value, member.client_id


def _natural_order(text: str) -> tuple[str | int, ...]:
    """Return a sort key for texts by which client 2 comes before client 10."""
    parts: list[str | int] = []
    for part in re.split(r"([0-9]+)", text):  # Words at even places, numbers at odd places.
        is_number = len(parts) % 2 == 1
        parts.append(int(part) if is_number else part)
    return tuple(parts)
