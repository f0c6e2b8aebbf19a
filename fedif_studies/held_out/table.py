"""The study's rows as a table: means over seeds."""

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

_TAKEN = (*TREATMENTS, BY_CLASS, TRUE_CHANCES)
_FEDERATION = ("data", "attack", "strategy", "examples", "seed")
Runs = Sequence[Row]
"""Rows of the same cell but for their seeds."""


def moved_money(rows: Sequence[Row]) -> dict[tuple[str, ...], float]:
    """Return by cell how much money is at another member than by a set without faults, in [0, 1].

    Such a set has as many examples, all classes, and right labels. Where one of both sets pays
    nobody, no money can be compared, and the cell is not there.
    """
    without_faults = {}
    for row in rows:
        if _pays_anybody(row) and _is_without_faults(row):
            without_faults[_federation(row)] = _shares(row)
    money_by_cell = {}
    for row in rows:
        reference = without_faults.get(_federation(row))
        if _pays_anybody(row) and reference is not None:
            money_by_cell[_cell_of(row)] = _moved(_shares(row), reference)
    return money_by_cell


def _moved(shares: Sequence[float], reference: Sequence[float]) -> float:
    """Return what members have beyond their shares by the reference, in all."""
    moved = 0.0
    for ours, theirs in zip(shares, reference, strict=True):
        moved += max(ours - theirs, 0.0)
    return moved


def _pays_anybody(row: Row) -> bool:
    return any(share > 0 for share in _shares(row))


def _is_without_faults(row: Row) -> bool:
    if float(row["wrong"]) != 0 or row["classes"] != WHOLE:
        return False
    return bool(row["treatment"] == AS_IT_IS)


def _federation(row: Row) -> tuple[str, ...]:
    """Return what two runs have in common that differ in faults of the held-out set alone."""
    return tuple(row[name] for name in _FEDERATION)


def _cell_of(row: Row) -> tuple[str, ...]:
    """Return the values that tell a run's cell from all others."""
    return tuple(row[name] for name in KEY)


def _shares(row: Row) -> list[float]:
    return [float(share) for share in row["shares"].split()]


def _with_moved_money(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with a column ``moved``: ``None`` where no money can be compared."""
    money_by_cell = moved_money(rows)
    return [{**row, "moved": money_by_cell.get(_cell_of(row))} for row in rows]


def table(rows: Sequence[Row]) -> ResultTable:
    """Return means over seeds by data, attack, size, fault and strategy."""
    groups = grouped(_with_moved_money(rows), _line_key)
    in_order = [groups[key] for key in sorted(groups)]
    return table_of("Faults of the held-out set", _COLUMNS, in_order, num_labels=8)


def _line_key(row: Row) -> tuple[Any, ...]:
    """Return what the runs of a line have in common, in the order by which lines are sorted."""
    return (
        row["data"],
        # Kinds and treatments come as the study lists them, not by their letters.
        KINDS.index(row["kind"]),
        row["classes"],
        row["attack"],
        row["strategy"],
        int(row["examples"]),
        float(row["wrong"]),
        _TAKEN.index(row["treatment"]),
    )


def short_table(rows: Sequence[Row], data: str) -> ResultTable:
    """Return what wrong labels do, and what is left of it once the loss is corrected.

    Accuracy and AUC are FedIF's with three of ten members' labels wrong; money is paid by
    contributions under FedAvg, to the three, and moved where all ten are honest.

    Parameters
    ----------
    rows : sequence of mapping
        The core's.
    data : str
        Of which data set.
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
    """Return a column's mean as the set is, and with the loss corrected; once where it is one."""
    groups = grouped(rows, lambda row: (row["attack"], row["strategy"], row["treatment"]))
    before = _mean(groups.get((attack, strategy, AS_IT_IS), ()), column, unit=unit, digits=digits)
    after = _mean(groups.get((attack, strategy, CORRECTED), ()), column, unit=unit, digits=digits)
    if before == after:
        return before
    return f"{before} → {after}"


def _mean(rows: Runs, column: str, *, unit: float = 1, digits: int = 1) -> str:
    """Return a column's mean, and of how many runs it is where some have no value.

    Parameters
    ----------
    rows : sequence of mapping
        The runs.
    column : str
        Whose values.
    unit : float
        By what they are multiplied: 100 for percent.
    digits : int
        Behind the point.
    """
    values = [float(row[column]) for row in rows if row[column] not in (None, "")]
    if not values:
        return "-"
    shown = f"{unit * mean(values):.{digits}f}"
    if len(values) < len(rows):
        shown += f" ({len(values)} of {len(rows)})"
    return shown


def _mean_to_liars(runs: Runs) -> str:
    """Return the share of money that malicious members have; a dash where nobody is malicious."""
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
