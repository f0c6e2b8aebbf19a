"""The arena's tables, made from the rows of its bouts: who holds up under which attack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from fedif_flower.storage import make_folder, write_atomically
from fedif_flower.tables import ResultTable
from fedif_studies.arena.bouts import CLEAN
from fedif_studies.lab.table import MeanStd, pivot
from fedif_studies.rows import put_tables

Point = tuple[str, str]
"""An attack and its share of malicious clients."""
Found = Mapping[tuple[str, str], Mapping[Point, MeanStd]]
"""By rule and bounds: a figure's mean and deviation over seeds under each attack."""


def over_seeds(rows: Iterable[Mapping[str, str]], data: str, figure: str) -> Found:
    """Return a figure of a data set's bouts in percent, in the order of the rows."""
    values: dict[tuple[str, str], dict[Point, list[float]]] = {}
    for row in rows:
        if row["data"] == data and row[figure]:
            own = values.setdefault((row["rule"], row["bounds"]), {})
            own.setdefault((row["attack"], row["share"]), []).append(100 * float(row[figure]))
    return {
        rule: {point: MeanStd.of(found) for point, found in own.items()}
        for rule, own in values.items()
    }


def worst_cases(rows: Sequence[Mapping[str, str]], data: str) -> ResultTable:
    """Return a line per rule and bounds: without attack, and at its worst over the attacks."""
    accuracy, success = (over_seeds(rows, data, f) for f in ("accuracy", "attack-success"))
    shares = sorted({share for own in accuracy.values() for _, share in own if float(share)})
    heading = ["rule", "bounds", "no attack"]
    heading += [f"worst at {float(share):.0%}, by" for share in shares]
    heading += [f"backdoor at {float(share):.0%}" for share in shares]
    lines = []
    for rule, own in accuracy.items():
        clean = [found for (attack, _), found in own.items() if attack == CLEAN]
        line = [*rule, clean[0].shown(".1f") if clean else "-"]
        line += [_extreme(own, share, min) for share in shares]
        line += [_extreme(success.get(rule, {}), share, max) for share in shares]
        lines.append(line)
    title = f"{data}: test accuracy and a backdoor's success, %"
    return ResultTable(title, heading, lines, num_labels=2)


def _extreme(own: Mapping[Point, MeanStd], share: str, choose: Callable[..., Point]) -> str:
    points = [(attack, s) for attack, s in own if s == share and attack != CLEAN]
    if not points:
        return "-"
    point = choose(points, key=lambda one: own[one].mean)
    return f"{own[point].shown('.1f')}, {point[0]}"


def every_attack(rows: Sequence[Mapping[str, str]], data: str, figure: str) -> ResultTable:
    """Return a line per attack and share, with a figure of each rule and bounds."""
    values = (
        ((_condition(row),), f"{row['rule']}, {row['bounds']}", 100 * float(row[figure]))
        for row in rows
        if row["data"] == data and row[figure]
    )
    title = f"{data}: {figure}, %"
    return pivot(title, ["attack"], values, lambda own: MeanStd.of(own).shown(".1f"))


def _condition(row: Mapping[str, str]) -> str:
    clean = row["attack"] == CLEAN
    return "no attack" if clean else f"{row['attack']}, {float(row['share']):.0%}"


def write_tables(page: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Put every data set's tables between the marks of a page; a new page has marks for all."""
    tables = {}
    for data in dict.fromkeys(row["data"] for row in rows):
        tables[f"{data} worst"] = worst_cases(rows, data)
        for figure in ("accuracy", "attack-success"):
            tables[f"{data} {figure}"] = every_attack(rows, data, figure)
    if not page.exists():
        make_folder(page.parent)
        marked = (
            f"## {table.title}\n\n<!-- begin: {name} -->\n<!-- end: {name} -->\n"
            for name, table in tables.items()
        )
        write_atomically(page, "\n".join(["# Arena\n", *marked]))
    put_tables(page, {name: table.to_markdown() for name, table in tables.items()})
