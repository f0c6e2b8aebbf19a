"""The study's rows as a table: means over seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
from fedif_studies.rows import Row

_TAKEN = (*TREATMENTS, BY_CLASS, TRUE_CHANCES)
_FEDERATION = ("data", "attack", "strategy", "examples", "seed")


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
        if not _pays_anybody(row) or reference is None:
            continue
        cell = tuple(row[name] for name in KEY)
        money_by_cell[cell] = 0.0
        for ours, theirs in zip(_shares(row), reference, strict=True):
            money_by_cell[cell] += max(ours - theirs, 0.0)
    return money_by_cell


def _pays_anybody(row: Row) -> bool:
    return any(share > 0 for share in _shares(row))


def _is_without_faults(row: Row) -> bool:
    is_right = float(row["wrong"]) == 0 and row["classes"] == WHOLE
    return is_right and row["treatment"] == AS_IT_IS


def _federation(row: Row) -> tuple[str, ...]:
    """Return what two runs have in common that differ in faults of the held-out set alone."""
    return tuple(row[name] for name in _FEDERATION)


def _shares(row: Row) -> list[float]:
    return [float(share) for share in row["shares"].split()]


def table(rows: Sequence[Row]) -> ResultTable:
    """Return means over seeds by data, attack, size, fault and strategy."""
    money_by_cell = moved_money(rows)
    groups: Mapping[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        place = (
            row["data"],
            KINDS.index(row["kind"]),
            row["classes"],
            row["attack"],
            row["strategy"],
            int(row["examples"]),
            float(row["wrong"]),
            _TAKEN.index(row["treatment"]),
        )
        groups[place].append(row)
    lines = []
    for place, alike in sorted(groups.items()):
        data, kind, classes, attack, strategy, size, wrong, treatment = place
        cells = [tuple(row[name] for name in KEY) for row in alike]
        money = [money_by_cell.get(cell) for cell in cells]
        to_liars = [row["liars_share"] for row in alike if attack != "none"]
        line = [data, attack, strategy, str(size), f"{wrong:.0%}", KINDS[kind], classes]
        line += [_TAKEN[treatment], str(len(alike))]
        line += [
            _mean([row["accuracy"] for row in alike], 100),
            _mean([row["auc"] for row in alike], 1, 3),
            _mean(to_liars, 100),
            _mean(money, 100),
            _mean([row["corrected"] for row in alike], 1, 2),
        ]
        lines.append(line)
    heading = ["data", "attack", "strategy", "held out", "wrong", "kind", "class 6", "taken"]
    heading += ["runs", "accuracy", "AUC", "to liars, %", "moved, %", "corrected for"]
    return ResultTable("Faults of the held-out set", heading, lines, num_labels=8)


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
    money_by_cell = moved_money(rows)
    core = [row for row in rows if _is_core(row, data)]
    places = sorted({(int(row["examples"]), float(row["wrong"])) for row in core})
    lines = []
    for size, wrong in places:
        here = [row for row in core if (int(row["examples"]), float(row["wrong"])) == (size, wrong)]
        attacked = [row for row in here if row["attack"] == "label-noise"]
        honest = [row for row in here if row["attack"] == "none"]
        money = []
        for row in honest:
            cell = tuple(row[name] for name in KEY)
            money.append({**row, "moved": money_by_cell.get(cell)})
        lines.append(
            [
                str(size),
                f"{wrong:.0%}",
                _before_and_after(attacked, "fedif", "accuracy", 100),
                _before_and_after(attacked, "fedif", "auc", 1, 2),
                _before_and_after(attacked, "fedavg", "liars_share", 100, 0),
                _before_and_after(money, "fedavg", "moved", 100, 0),
            ]
        )
    heading = ["held out", "wrong", "accuracy", "AUC", "to the three, %", "moved among ten, %"]
    return ResultTable(data, heading, lines, num_labels=2)


def _is_core(row: Row, data: str) -> bool:
    is_symmetric = row["kind"] == SYMMETRIC and row["classes"] == WHOLE
    is_of_core = row["attack"] in CORE["attack"] and row["strategy"] in CORE["strategy"]
    return row["data"] == data and is_symmetric and is_of_core


def _before_and_after(
    rows: Sequence[Row], strategy: str, column: str, unit: float, digits: int = 1
) -> str:
    """Return a column's mean as the set is, and with the loss corrected; once where it is one."""
    means = []
    for treatment in (AS_IT_IS, CORRECTED):
        group = (strategy, treatment)
        values = [row[column] for row in rows if (row["strategy"], row["treatment"]) == group]
        means.append(_mean(values, unit, digits))
    before, after = means
    return before if before == after else f"{before} → {after}"


def _mean(values: Sequence[Any], unit: float, digits: int = 1) -> str:
    """Return a mean of those values that there are, and of how many where some are missing."""
    numbers = [float(value) for value in values if value not in (None, "")]
    if not numbers:
        return "-"
    shown = f"{unit * mean(numbers):.{digits}f}"
    if len(numbers) < len(values):
        shown += f" ({len(numbers)} of {len(values)})"
    return shown
