"""The tables of ``docs/audit/index.md``, made from the rows of :mod:`fedif_studies.audit.__main__`.

A cell is the mean over seeds, and the smallest and largest of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from fedif_flower.run.rows import read_rows
from fedif_studies.audit.findings import CEILING, spearman
from fedif_studies.audit.games import ACE, WRONG_LABELS
from fedif_studies.audit.target import OBJECTIVES, WITHIN
from fedif_studies.audit.truth import AT_RANDOM, AUC, EVERYBODY, GATED, ORACLE, RANKS, TRUTHS
from fedif_studies.rows import RESULTS, put_tables

AUDIT = RESULTS.parent / "audit"
TRUTH_ROWS, TARGET_ROWS, OBJECTIVE_ROWS = (
    AUDIT / f"{name}.csv" for name in ("truth", "target", "objectives")
)
CONTROLS = (EVERYBODY, AT_RANDOM, ORACLE)
Row = Mapping[str, str]
Lines = dict[tuple[str, str], list[float]]


def cell(values: Sequence[float], digits: int = 2) -> str:
    """Return mean and range of what is defined."""
    defined = [value for value in values if value == value]
    if not defined:
        return "-"
    mean, low, high = statistics.fmean(defined), min(defined), max(defined)
    if f"{low:.{digits}f}" == f"{high:.{digits}f}":
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def grid(values: Lines, down: Iterable[str], across: Mapping[str, str], corner: str) -> list[str]:
    """Return a Markdown table of cells by (down, across); ``across``: keys and their heads."""
    table = [
        f"| {corner} | {' | '.join(across.values())} |",
        f"| --- |{' ---: |' * len(across)}",
    ]
    for name in down:
        cells = [cell(values.get((name, key), [])) for key in across]
        if set(cells) != {"-"}:
            table.append(f"| {name} | {' | '.join(cells)} |")
    return table


def collect(rows: Iterable[Row], down: str, across: Callable[[Row], str]) -> Lines:
    """Return the rows' values by what they are down and across."""
    found: Lines = {}
    for row in rows:
        found.setdefault((row[down], across(row)), []).append(float(row["value"]))
    return found


def _named(rows: Iterable[Row], first: Sequence[str] = ()) -> list[str]:
    """Return the valuations in the rows' order, controls before them."""
    names = dict.fromkeys(row["valuation"] for row in rows)
    return [*first, *(name for name in names if name not in first)]


def gating_table(rows: Sequence[Row], data: str, members: str) -> list[str]:
    """Return the accuracy without the lowest valued, less that with everybody, in points."""
    own = [r for r in rows if (r["data"], r["members"], r["figure"]) == (data, members, GATED)]
    floor = {(r["case"], r["seed"]): float(r["value"]) for r in own if r["valuation"] == EVERYBODY}
    found: Lines = {}
    for row in own:
        value = 100.0 * float(row["value"])
        if row["valuation"] != EVERYBODY:
            value -= 100.0 * floor[row["case"], row["seed"]]
        found.setdefault((row["valuation"], row["case"]), []).append(value)
    return grid(found, _named(own, CONTROLS), {case: case for case in TRUTHS}, "left out by")


def finding_table(rows: Sequence[Row], data: str, members: str) -> list[str]:
    """Return AUC and rank agreement by case, after the last round."""
    own = [r for r in rows if (r["data"], r["members"]) == (data, members) and r["figure"] != GATED]
    last = max((int(row["rounds"]) for row in own), default=0)
    own = [row for row in own if int(row["rounds"]) == last]
    heads = {f"{case}{figure}": f"{case}, {figure}" for case in TRUTHS for figure in (AUC, RANKS)}
    present = {row["case"] + row["figure"] for row in own}
    found = collect(own, "valuation", lambda row: row["case"] + row["figure"])
    across = {key: head for key, head in heads.items() if key in present}
    return grid(found, _named(own), across, "valuation")


def seldom_table(rows: Sequence[Row], data: str, members: str, case: str) -> list[str]:
    """Return AUC after fewer and more rounds."""
    key = (data, members, case, AUC)
    own = [r for r in rows if (r["data"], r["members"], r["case"], r["figure"]) == key]
    rounds = sorted({int(row["rounds"]) for row in own})
    across = {str(after): f"{after} rounds" for after in rounds}
    return grid(collect(own, "valuation", lambda row: row["rounds"]), _named(own), across, case)


def cost_table(rows: Sequence[Row], data: str) -> list[str]:
    """Return cost beside fidelity: each valuation a line."""
    own = [row for row in rows if row["data"] == data]
    found: Lines = {}
    for row in own:
        key = row["figure"] if row["figure"] in _COST else f"{row['case']}, {row['figure']}"
        found.setdefault((row["valuation"], key), []).append(float(row["value"]))
    across = dict(_COST)
    for case in dict.fromkeys(row["case"] for row in own):
        across |= {
            f"{case}, Pearson, {WITHIN}": f"{case}: with {WITHIN}",
            f"{case}, Pearson, test_loss": f"{case}: with retraining",
        }
    return grid(found, _named(own), across, "valuation")


_UTILITIES = {"test_loss": "loss", "test_accuracy": "accuracy", "test_macro_f1": "macro-F1"}
_COST = {"milliseconds": "ms a round", "gradients": "gradients", "evaluations": "evaluations"}


def repeat_table(rows: Sequence[Row], data: str) -> list[str]:
    """Return how well retrainings of two seeds agree, and the best valuation beside it."""
    own = [row for row in rows if row["data"] == data and row["target"]]
    found = collect(own, "valuation", lambda row: f"{row['case']}, {row['figure']}")
    across = {
        f"{case}, {kind}, {utility}": f"{case}: {kind}, {words}"
        for case in dict.fromkeys(row["case"] for row in own)
        for utility, words in _UTILITIES.items()
        for kind in ("Pearson", "Spearman")
    }
    return grid(found, _named(own, (CEILING,)), across, "target of one seed against")


def objective_table(rows: Sequence[Row], data: str) -> list[str]:
    """Return rank agreement between values by different objectives, and between seeds."""
    values: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row["data"] == data:
            key = (row["valuation"], row["case"], row["objective"], row["seed"])
            values.setdefault(key, []).append(float(row["value"]))
    seeds = sorted({key[3] for key in values})
    names = list(OBJECTIVES.values())
    found: Lines = {}
    for valuation, case in dict.fromkeys(key[:2] for key in values):
        head = f"{valuation}, {case}"
        for i, one in enumerate(names):
            for other in names[i:]:
                pairs = (
                    [(s, s) for s in seeds]
                    if one != other
                    else [(s, t) for s in seeds for t in seeds if s < t]
                )
                found[head, one + other] = [
                    spearman(
                        torch.tensor(values[valuation, case, one, s]),
                        torch.tensor(values[valuation, case, other, t]),
                    )
                    for s, t in pairs
                ]
    across = {
        one + other: f"{one} and {other}" if one != other else f"{one}, two seeds"
        for i, one in enumerate(names)
        for other in names[i:]
    }
    return grid(found, dict.fromkeys(key[0] for key in found), across, "values")


def deception_table(findings: Sequence[Row]) -> list[str]:
    """Return what ACE's deception brings beside games that need no prediction."""
    games = (WRONG_LABELS, ACE, "last step, k = 1", "last step, k = 2", "own update and last step")
    own = [row for row in findings if row["question"].startswith("share")]
    found = collect(own, "valuation", lambda row: row["case"])
    return grid(found, _named(own), {game: game for game in games}, "valuation")


def write_page(page: Path) -> None:
    """Put every table whose rows are there between the page's marks."""
    truth, target, objectives = map(read_rows, (TRUTH_ROWS, TARGET_ROWS, OBJECTIVE_ROWS))
    tables = {}
    for data, members in dict.fromkeys((row["data"], row["members"]) for row in truth):
        tables[f"gating {data} {members}"] = gating_table(truth, data, members)
        tables[f"finding {data} {members}"] = finding_table(truth, data, members)
        for case in TRUTHS:
            tables[f"seldom {data} {members} {case}"] = seldom_table(truth, data, members, case)
    for data in dict.fromkeys(row["data"] for row in target):
        tables[f"cost {data}"] = cost_table(target, data)
        tables[f"repeat {data}"] = repeat_table(target, data)
        tables[f"objectives {data}"] = objective_table(objectives, data)
    tables["deception"] = deception_table(read_rows(AUDIT / "games" / "findings.csv"))
    put_tables(page, tables)
