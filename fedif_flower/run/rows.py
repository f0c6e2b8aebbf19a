"""The lines of ``rounds.csv``, ``clients.csv`` and ``attendance.csv``."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar, get_args, get_origin, get_type_hints

from fedif_flower.foreign import regular
from fedif_flower.messages.screening import Status
from fedif_flower.strategies.presence import Change, Presence
from fedif_flower.strategies.reports import RoundStatus


@dataclass(frozen=True)
class RoundRow:
    """A line of ``rounds.csv``; seconds are wall time, ``train_seconds`` the mean per client.

    ``failed`` counts clients, ``late`` those whose reply may come in a later round, and ``online``
    all that were there when the round began; ``status`` says what the round made of the
    model: ``"advanced"``; ``"kept"``, where the rule gave nobody weight, which is no failure; or
    ``"failed"``, as ``round_failed`` has it for who reads numbers. ``reason`` says why it stays.
    ``attack_success`` is the share of test images with a backdoor's trigger that get its target
    class. ``losses`` are those of a descent, at its start and after
    each step taken. ``metrics`` are those of the task by column, such as
    ``test_mean_absolute_error``.
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
    late: int = 0
    online: int = 0
    status: RoundStatus = "advanced"
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def is_failed(self) -> bool:
        """Whether the round made no step, or most of its clients failed."""
        asked = self.accepted + self.rejected + self.failed
        return self.round_failed or 2 * self.failed > asked

    @property
    def headline(self) -> str:
        """What progress shows of it, in a few words; empty where nothing was evaluated."""
        return headline(self.columns())

    def columns(self) -> dict[str, Any]:
        """Return its values by column; each metric of the task has one of its own."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, **values.pop("metrics")}


@dataclass(frozen=True)
class ClientRow:
    """A line of ``clients.csv``: one client in one round.

    ``status`` is what became of it, ``rejection`` why it is not ``"accepted"``.
    ``claimed_examples`` are those that it reported, where it counts for fewer. ``asked_in`` is the
    round in which it was asked, where that is an earlier one.
    """

    round: int
    partition_id: int
    client_id: int
    malicious: bool
    score: float | None
    normalized: float | None
    weight_score: float | None
    weight: float | None
    accumulative_influence: float | None
    num_examples: int | float | None
    claimed_examples: int | float | None
    train_seconds: float | None
    train_loss: float | None
    status: Status
    rejection: str
    note: str = ""
    asked_in: int | None = None


@dataclass(frozen=True)
class AttendanceRow:
    """A line of ``attendance.csv``: what a member is from a round on, until its next line.

    ``at`` says since when, in UTC: of one that is gone, when it was last seen; empty: not known.
    """

    round: int
    partition_id: int
    client_id: int
    presence: Presence
    at: str = ""

    @classmethod
    def of(cls, server_round: int, change: Change) -> AttendanceRow:
        """Return the line of a change that a round found."""
        at = "" if change.at is None else f"{datetime.fromtimestamp(change.at, UTC):%F %T}"
        node = change.node
        return cls(server_round, node.partition_id, node.client_id, change.presence, at)


def headline(columns: Mapping[str, Any]) -> str:
    """Return the first figure of the test split that a line of ``rounds.csv`` has, in words."""
    if columns["test_accuracy"] not in (None, ""):
        return f"test accuracy {float(columns['test_accuracy']):.1%}"
    usual = ("test_accuracy", "test_loss")
    named = [name for name in columns if name.startswith("test_") and name not in usual]
    for name in (*named, "test_loss"):
        if columns[name] not in (None, ""):
            return f"{name.replace('_', ' ')} {float(columns[name]):.4g}"
    return ""


_Row = TypeVar("_Row", RoundRow, ClientRow, AttendanceRow)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file; a last line cut off by a crash is left out."""
    if not path.exists():
        return []
    with open_table(path) as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def open_table(path: Path) -> TextIO:
    """Open a CSV file that somebody else may have written."""
    return open(path, newline="", encoding="utf-8", opener=regular)


def rows_between(rows: Sequence[_Row], after: int, last_round: int) -> Sequence[_Row]:
    """Return the lines of the rounds after one, up to another; rounds never fall."""
    start, end = (bisect_right(rows, t, key=lambda row: row.round) for t in (after, last_round))
    return rows[start:end]


def checked_row(kind: type[_Row], values: Mapping[str, Any]) -> _Row:
    """Return a line of a file from its values by column, every one of the column's type."""
    row = kind(**values)
    for name, wanted in get_type_hints(kind).items():
        value = getattr(row, name)
        if get_origin(wanted) is Literal:
            fits = value in get_args(wanted)
        else:
            fits = isinstance(value, dict if get_origin(wanted) is dict else wanted)
        if not fits:
            raise ValueError(f"its records have {name} = {value!r}")
    return row


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as the lines of a CSV file."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(cell, row) for row in rows)
    return text.getvalue()


def cell(value: object) -> object:
    """Return a value as a CSV file holds it."""
    if isinstance(value, bool):
        return int(value)
    # A spreadsheet would take such a text, which a client may have written, for a formula.
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return "" if value is None else value
