"""The arena's tables, made from the rows of its bouts: each rule's accuracy under each attack."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fedif_flower.storage import make_folder, write_atomically
from fedif_flower.tables import ResultTable
from fedif_studies.arena.bouts import CLEAN
from fedif_studies.lab.table import MeanStd, grouped, pivot
from fedif_studies.rows import begin_of, end_of, put_tables

Point = tuple[str, str]
"""An attack, and the share of malicious clients."""
ByPoint = Mapping[Point, MeanStd]
ByRule = Mapping[tuple[str, str], ByPoint]
"""By (rule, bounds), then by attack and share: a figure's mean and deviation over seeds."""
_BOUT = ("data", "seed", "attack", "share", "rule", "bounds")
_WORDS = MappingProxyType(
    {
        "accuracy": "test accuracy in the mean of the last ten rounds",
        "attack-success": "a backdoor's success after the last round",
    }
)


def over_seeds(rows: Sequence[Mapping[str, str]], data: str, figure: str) -> ByRule:
    """Return a figure of a data set's bouts, in percent, as means over seeds."""
    with_figure = [row for row in _latest(rows) if row["data"] == data and row[figure]]
    means: dict[tuple[str, str], dict[Point, MeanStd]] = {}
    for rule, rows_of_rule in grouped(with_figure, _rule_of).items():
        means[rule] = {}
        for point, of_seeds in grouped(rows_of_rule, _point_of).items():
            means[rule][point] = MeanStd.of([100 * float(row[figure]) for row in of_seeds])
    return means


def _rule_of(row: Mapping[str, str]) -> tuple[str, str]:
    """Return a bout's rule and its bounds."""
    return row["rule"], row["bounds"]


def _point_of(row: Mapping[str, str]) -> Point:
    """Return a bout's attack and its share of malicious clients."""
    return row["attack"], row["share"]


def _latest(rows: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Return the last row of each bout, and only those of the latest edition of a user's own code.

    For a rule under an attack, the latest edition is that of the last row. Seeds that were measured
    with different editions must not be averaged.
    """
    last_of_bout = {}
    last_code = {}
    for row in rows:
        last_of_bout[tuple(row[name] for name in _BOUT)] = row
        last_code[_pairing(row)] = row.get("code", "")
    latest = []
    for row in last_of_bout.values():
        code = row.get("code", "")
        if code == last_code[_pairing(row)]:
            latest.append(row)
    return latest


def _pairing(row: Mapping[str, str]) -> tuple[str, str, str]:
    """Return a bout's data, and its rule and attack, whose code the column ``code`` is of."""
    return row["data"], row["rule"], row["attack"]


def worst_cases(rows: Sequence[Mapping[str, str]], data: str) -> ResultTable:
    """Return a table with a line per rule and bounds: without attack, and under the worst attack.

    If a rule has not met all attacks of a share, its line says how many it has met.
    """
    accuracy = over_seeds(rows, data, "accuracy")
    success = over_seeds(rows, data, "attack-success")
    met = _attacks_by_share(accuracy)
    backdoors = _attacks_by_share(success)
    shares = sorted(met)
    heading = ["rule", "bounds", "no attack"]
    heading += [f"worst at {_percent(share)}, by" for share in shares]
    heading += [f"backdoor at {_percent(share)}" for share in shares]
    lines = []
    for rule, accuracies in accuracy.items():
        successes = success.get(rule, {})
        line = [*rule, _without_attack(accuracies)]
        line += [_extreme(accuracies, share, min, met[share]) for share in shares]
        line += [_extreme(successes, share, max, backdoors.get(share, set())) for share in shares]
        lines.append(line)
    title = f"{data}: {_WORDS['accuracy']}, and {_WORDS['attack-success']}, %"
    return ResultTable(title, heading, lines, num_labels=2)


def _without_attack(figures: ByPoint) -> str:
    """Return the figure without an attack as text, or a dash."""
    for (attack, _share), figure in figures.items():
        if attack == CLEAN:
            return figure.shown(".1f")
    return "-"


def _attacks_by_share(figures: ByRule) -> dict[str, set[str]]:
    """Return the attacks that any rule has met, by the share of malicious clients."""
    attacks: dict[str, set[str]] = {}
    for attack, share in itertools.chain.from_iterable(figures.values()):
        if attack != CLEAN:
            attacks.setdefault(share, set()).add(attack)
    return attacks


def _extreme(figures: ByPoint, share: str, choose: Callable[..., str], attacks: set[str]) -> str:
    """Return the least or the largest figure at a share, with its attack, as text.

    ``choose`` is ``min`` or ``max``; ``attacks`` are all that some rule has met at this share.
    """
    by_attack = {}
    for (attack, share_of_attack), figure in figures.items():
        if attack != CLEAN and share_of_attack == share:
            by_attack[attack] = figure
    if not by_attack:
        return "-"
    extreme = choose(by_attack, key=lambda attack: by_attack[attack].mean)
    shown = f"{by_attack[extreme].shown('.1f')}, {extreme}"
    if len(by_attack) < len(attacks):
        return f"{shown} ({len(by_attack)} of {len(attacks)} attacks met)"
    return shown


def every_attack(rows: Sequence[Mapping[str, str]], data: str, figure: str) -> ResultTable:
    """Return a table with a line per attack and share, and a column per rule and bounds."""
    values = []
    for row in _latest(rows):
        if row["data"] == data and row[figure]:
            line = (_condition(row),)
            column = f"{row['rule']}, {row['bounds']}"
            values.append((line, column, 100 * float(row[figure])))
    title = f"{data}: {_WORDS[figure]}, %"
    return pivot(title, ["attack"], values, lambda of_seeds: MeanStd.of(of_seeds).shown(".1f"))


def _condition(row: Mapping[str, str]) -> str:
    if row["attack"] == CLEAN:
        return "no attack"
    return f"{row['attack']}, {_percent(row['share'])}"


def _percent(share: str) -> str:
    """Return a share in percent with all its digits: rounded shares might share a line."""
    return f"{100 * float(share):g}%"


def write_tables(page: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Put every data set's tables between their marks on a page.

    If the page has no mark for a data set, marks for all of its tables are added at the end.
    """
    if not page.exists():
        make_folder(page.parent)
        write_atomically(page, "# Arena\n")
    for data in dict.fromkeys(row["data"] for row in rows):
        tables = {f"{data} worst": worst_cases(rows, data)}
        for figure in ("accuracy", "attack-success"):
            tables[f"{data} {figure}"] = every_attack(rows, data, figure)
        text = page.read_text(encoding="utf-8")
        if not any(begin_of(name) in text for name in tables):
            sections = [_section(name, table) for name, table in tables.items()]
            write_atomically(page, "\n".join([text, *sections]))
        remarks = missing_bouts(rows, data)
        lines = {}
        for name, table in tables.items():
            shown = table.to_markdown()
            if not table.lines:
                shown = ["None of these attacks is a backdoor."]
            lines[name] = [*shown, *remarks]
        put_tables(page, lines)


def missing_bouts(rows: Sequence[Mapping[str, str]], data: str) -> list[str]:
    """Return lines that say how many of a data set's bouts have no row; none if all have one.

    All combinations of the rules (with bounds), the attacks (with shares) and the seeds that appear
    in the rows should be there, since means over different seeds cannot be compared. Rows of an
    earlier edition of a user's own code do not count.
    """
    rules = set()
    points = set()
    seeds = set()
    played = set()
    for row in rows:
        if row["data"] != data:
            continue
        rules.add(_rule_of(row))
        points.add(_point_of(row))
        seeds.add(row["seed"])
    for row in _latest(rows):
        if row["data"] == data:
            played.add((_rule_of(row), _point_of(row), row["seed"]))
    count = len(rules) * len(points) * len(seeds)
    missing = count - len(played)
    if not missing:
        return []
    return ["", f"Missing: {missing} of {count} bouts of these rules, attacks and seeds."]


def _section(name: str, table: ResultTable) -> str:
    """Return a table's title, and the marks between which it is put."""
    return f"## {table.title}\n\n{begin_of(name)}\n{end_of(name)}\n"
