"""The lines of ``rounds.csv`` and ``clients.csv``."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints


@dataclass(frozen=True)
class RoundRow:
    """A line of ``rounds.csv``; seconds are wall time, ``train_seconds`` the mean per client.

    ``failed`` counts clients; ``round_failed`` says that the round left the model as it was,
    and ``reason`` why. ``attack_success`` is the share of test images with a backdoor's
    trigger that get its target class. ``losses`` are those of a descent, at its start and after
    each step taken.
    """

    round: int
    test_accuracy: float | None
    test_loss: float | None
    validation_accuracy: float | None
    validation_loss: float | None
    round_seconds: float
    train_seconds: float | None
    aggregation_seconds: float
    evaluation_seconds: float
    accepted: int
    rejected: int
    failed: int
    evaluations: int
    round_failed: bool = False
    reason: str = ""
    attack_success: float | None = None
    losses: str = ""


@dataclass(frozen=True)
class ClientRow:
    """A line of ``clients.csv``: one client in one round."""

    round: int
    partition_id: int
    client_id: int
    malicious: bool
    score: float | None
    normalized: float | None
    contribution: float | None
    weight: float | None
    accumulative_influence: float | None
    num_examples: int | float | None
    train_seconds: float | None
    train_loss: float | None
    rejection: str
    note: str = ""


_Row = TypeVar("_Row", RoundRow, ClientRow)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file; a last line cut off by a crash is left out."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def checked_row(kind: type[_Row], values: Mapping[str, Any]) -> _Row:
    """Return a line of a file from its values by column, every one of the column's type."""
    row = kind(**values)
    for name, wanted in get_type_hints(kind).items():
        if not isinstance(getattr(row, name), wanted):
            raise ValueError(f"its records have {name} = {getattr(row, name)!r}")
    return row


def cell(value: object) -> object:
    """Return a value as a CSV file holds it."""
    if isinstance(value, bool):
        return int(value)
    # A spreadsheet would take such a text, which a client may have written, for a formula.
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return "" if value is None else value
