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
        Its rounds, by what became of its reply; away: none came, or its registration had ended. One
        that may yet come is in none of them.
    contribution : float, optional
        By how much its updates lowered the validation loss (in nats for a cross-entropy), where the
        run attributed contributions.
    low, high : float, optional
        The ends of its 95 % interval; :attr:`Run.interval` says what it is about.
    weight_score : float, optional
        Omega after its last round, where the strategy has one.
    weight : float
        The sum of its aggregation weights.
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
    weight: float
    malicious: bool

    @property
    def label(self) -> str:
        """How a table calls it."""
        return called(self.client_id, self.partition_id, self.name)


def sort_key(member: Member, column: str) -> tuple[Any, ...]:
    """Return what members are sorted by: the largest value of a column first, none or NaN last."""
    if column == "name":
        return _natural_order(member.label), member.client_id
    value = getattr(member, column)
    if value is None or math.isnan(value):
        return True, 0.0, member.client_id
    return False, -value, member.client_id


def _natural_order(text: str) -> tuple[str | int, ...]:
    """Return what texts are sorted by so that client 2 comes before client 10."""
    parts: list[str | int] = []
    for part in re.split(r"([0-9]+)", text):  # Texts at even places, numbers at odd ones.
        is_number = len(parts) % 2 == 1
        parts.append(int(part) if is_number else part)
    return tuple(parts)
