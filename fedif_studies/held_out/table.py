"""The study's tables: means of its rows over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from fedif_flower.tables import ResultTable
from fedif_studies.held_out.cells import (
    AS_IT_IS,
    BY_CLASS,
    CORE,
    CORRECTED,
    KEY,
    TREATMENTS,
    TRUE_CHANCES,
)
from fedif_studies.held_out.labels import KINDS, SYMMETRIC, WHOLE
from fedif_studies.lab.table import Column, grouped, table_of
from fedif_studies.rows import Row

_ALL_TREATMENTS = (*TREATMENTS, BY_CLASS, TRUE_CHANCES)  # In the order of the lines.
_FEDERATION = ("data", "attack", "strategy", "examples", "seed")
Runs = Sequence[Row]
"""Rows of cells that differ in their seeds alone."""


def moved_money(rows: Sequence[Row]) -> dict[tuple[str, ...], float]:
    """Return, by cell, the share of money that the held-out set's faults move, in [0, 1].

    It is compared with a run by a set without faults: as many examples, all classes and right
    labels, taken as it is. A cell is left out if there is no such run, or if one of both runs pays
    nobody.
    """
    without_faults = {}
    for row in rows:
        if _pays_anybody(row) and _is_without_faults(row):
            without_faults[_federation(row)] = _shares(row)
    money_by_cell = {}
    for row in rows:
        reference = without_faults.get(_federation(row))
        if _pays_anybody(row) and reference is not None:
            money_by_cell[_cell_of(row)] = _gained(_shares(row), reference)
    return money_by_cell


def _gained(shares: Sequence[float], reference: Sequence[float]) -> float:
    """Return the sum of what members have beyond their shares in the reference."""
    gained = 0.0
    for ours, theirs in zip(shares, reference, strict=True):
        gained += max(ours - theirs, 0.0)
    return gained


def _pays_anybody(row: Row) -> bool:
    return any(share > 0 for share in _shares(row))


def _is_without_faults(row: Row) -> bool:
    if float(row["wrong"]) != 0 or row["classes"] != WHOLE:
        return False
    return bool(row["treatment"] == AS_IT_IS)


def _federation(row: Row) -> tuple[str, ...]:
    """Return the values that two runs share if they differ in the held-out set's faults alone."""
    return tuple(row[name] for name in _FEDERATION)


def _cell_of(row: Row) -> tuple[str, ...]:
    """Return the values that identify a run's cell."""
    return tuple(row[name] for name in KEY)


def _shares(row: Row) -> list[float]:
    return [float(share) for share in row["shares"].split()]


def _with_moved_money(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with a column ``moved``, which is ``None`` if money cannot be compared."""
    money_by_cell = moved_money(rows)
    return [{**row, "moved": money_by_cell.get(_cell_of(row))} for row in rows]


def table(rows: Sequence[Row]) -> ResultTable:
    """Return a table of means over seeds, with a line for each data, fault, attack and strategy."""
    groups = grouped(_with_moved_money(rows), _line_key)
    in_order = [groups[key] for key in sorted(groups)]
    return table_of("Faults of the held-out set", _COLUMNS, in_order, num_labels=8)


def _line_key(row: Row) -> tuple[Any, ...]:
    """Return the values that the runs of a line share, in the order by which lines are sorted."""
    return (
        row["data"],
        # Kinds and treatments are in the study's order, not in alphabetical order.
        KINDS.index(row["kind"]),
        row["classes"],
        row["attack"],
        row["strategy"],
        int(row["examples"]),
        float(row["wrong"]),
        _ALL_TREATMENTS.index(row["treatment"]),
    )


def short_table(rows: Sequence[Row], data: str) -> ResultTable:
    """Return a table of the effect of wrong held-out labels, before and after a correction.

    Accuracy and AUC are those of FedIF if three of ten members have wrong labels. Money is paid by
    contributions under FedAvg: one column is the share that goes to these three, another the share
    that is moved if all ten members are honest.

    Parameters
    ----------
    rows : sequence of mapping
        The study's rows, of which those of the core are used.
    data : str
        The data set.
    """
    core = [row for row in _with_moved_money(rows) if _is_core(row, data)]
    groups = grouped(core, lambda row: (int(row["examples"]), float(row["wrong"])))
    return table_of(data, _SHORT_COLUMNS, [groups[key] for key in sorted(groups)], num_labels=2)


def _is_core(row: Row, data: str) -> bool:
    if row["data"] != data or row["kind"] != SYMMETRIC or row["classes"] != WHOLE:
        return False
    return row["attack"] in CORE["attack"] and row["strategy"] in CORE["strategy"]


def _before_and_after(
    rows: Runs, attack: str, strategy: str, column: str, *, unit: float = 1, digits: int = 1
) -> str:
    """Return as text a column's mean with the set as it is, and with the loss corrected.

    If both are the same, it stands once.
    """
    groups = grouped(rows, lambda row: (row["attack"], row["strategy"], row["treatment"]))
    before = _mean(groups.get((attack, strategy, AS_IT_IS), ()), column, unit=unit, digits=digits)
    after = _mean(groups.get((attack, strategy, CORRECTED), ()), column, unit=unit, digits=digits)
    if before == after:
        return before
    return f"{before} → {after}"


def _mean(rows: Runs, column: str, *, unit: float = 1, digits: int = 1) -> str:
    """Return as text a column's mean, and the number of runs with a value if some have none.

    Parameters
    ----------
    rows : sequence of mapping
        The runs.
    column : str
        The column.
    unit : float
        The factor by which values are multiplied: 100 for percent.
    digits : int
        The number of decimals.
    """
    values = [float(row[column]) for row in rows if row[column] not in (None, "")]
    if not values:
        return "-"
    shown = f"{unit * mean(values):.{digits}f}"
    if len(values) < len(rows):
        shown += f" ({len(values)} of {len(rows)})"
    return shown


def _mean_to_liars(runs: Runs) -> str:
    """Return malicious members' share of the money as text; a dash if nobody is malicious."""
    if runs[0]["attack"] == "none":
        return "-"
    return _mean(runs, "liars_share", unit=100)


def _size(runs: Runs) -> str:
    return str(int(runs[0]["examples"]))


def _share_of_wrong(runs: Runs) -> str:
    return f"{float(runs[0]['wrong']):.0%}"


_COLUMNS: Sequence[Column[Runs]] = (
    ("data", lambda runs: runs[0]["data"]),
    ("attack", lambda runs: runs[0]["attack"]),
    ("strategy", lambda runs: runs[0]["strategy"]),
    ("held out", _size),
    ("wrong", _share_of_wrong),
    ("kind", lambda runs: runs[0]["kind"]),
    ("class 6", lambda runs: runs[0]["classes"]),
    ("taken", lambda runs: runs[0]["treatment"]),
    ("runs", lambda runs: str(len(runs))),
    ("accuracy", lambda runs: _mean(runs, "accuracy", unit=100)),
    ("AUC", lambda runs: _mean(runs, "auc", digits=3)),
    ("to liars, %", _mean_to_liars),
    ("moved, %", lambda runs: _mean(runs, "moved", unit=100)),
    ("corrected for", lambda runs: _mean(runs, "corrected", digits=2)),
)
_SHORT_COLUMNS: Sequence[Column[Runs]] = (
    ("held out", _size),
    ("wrong", _share_of_wrong),
    (
        "accuracy",
        lambda runs: _before_and_after(runs, "label-noise", "fedif", "accuracy", unit=100),
    ),
    ("AUC", lambda runs: _before_and_after(runs, "label-noise", "fedif", "auc", digits=2)),
    (
        "to the three, %",
        lambda runs: _before_and_after(
            runs, "label-noise", "fedavg", "liars_share", unit=100, digits=0
        ),
    ),
    (
        "moved among ten, %",
        lambda runs: _before_and_after(runs, "none", "fedavg", "moved", unit=100, digits=0),
    ),
)
