"""Writes the tables and the picture of ``docs/results/audit.md`` from the committed rows."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedif_flower.run.rows import read_rows
from fedif_flower.tables import ResultTable
from fedif_studies.audit.cases import RETRAINED
from fedif_studies.audit.federation import RULES
from fedif_studies.audit.findings import (
    AREA,
    BETWEEN_RULES,
    CEILING,
    DETECTION,
    GAIN,
    AuditFinding,
    findings,
    pair_of,
    seeds_of_gains,
)
from fedif_studies.audit.lines import Lines, missing_federations, same_members, values_of
from fedif_studies.audit.measure import RETRAINING, RETRAINING_SEEDS, VALUES
from fedif_studies.audit.page import FINDINGS
from fedif_studies.audit.removal import RETRAINED_VALUES, case_curves
from fedif_studies.audit.removal_picture import LOOKS, RemovalPanel, removal_picture
from fedif_studies.pictures.sheets import write_picture
from fedif_studies.rows import put_derived, put_tables

AUDIT_PAGE = "audit.md"  # In docs/results.
# By data set, the folder in docs/audit with the audit's rows.
FOLDERS: Mapping[str, str] = {
    "Digits": "measures-digits",
    "Fashion-MNIST": "measures-fashion-mnist",
}
_WRONG_LABELS = "label noise"
_FIRST_RULE, *_OTHER_RULES = RULES
# The figures of retraining itself have two names, but share one line of a table.
_CEILING = "retraining itself (ceiling)"
_SHOWN_AS: Mapping[str, str] = {CEILING: _CEILING, RETRAINED_VALUES: _CEILING}


class Audited(NamedTuple):
    """The audit of a data set: its rows of values and of retraining, and its findings."""

    data: str
    folder: str
    values: Lines
    retrained: Lines
    findings: Sequence[AuditFinding]


def read_audited(docs: Path) -> list[Audited]:
    """Return the audits of all data sets; those without rows have no findings."""
    audits = []
    for data, folder in FOLDERS.items():
        values = read_rows(docs / "audit" / folder / VALUES)
        retrained = read_rows(docs / "audit" / folder / RETRAINING)
        rounded = [finding.rounded() for finding in findings(values, retrained)]
        audits.append(Audited(data, folder, values, retrained, rounded))
    return audits


def update_audit_page(docs: Path) -> Path:
    """Write the page's tables and its picture anew; return the page.

    Parameters
    ----------
    docs : Path
        The folder that has ``audit/measures-<data>/`` with the rows, and ``results/audit.md`` with
        marks where the tables stand.
    """
    audits = read_audited(docs)
    for audited in audits:
        if audited.findings:
            rows = [finding._asdict() for finding in audited.findings]
            put_derived(docs / "audit" / audited.folder / FINDINGS, rows)
    page = docs / "results" / AUDIT_PAGE
    picture = removal_picture(removal_panels(audits))
    put_tables(
        page,
        {
            "removal curves": write_picture(docs, picture, "../"),
            "five measures": _sections(audits, measures_table, _seeds_of_measures),
            "aggregation rules": _sections(audits, rules_table, _seeds_of_federations),
        },
    )
    return page


def removal_panels(audits: Iterable[Audited]) -> list[RemovalPanel]:
    """Return a panel for each data set and retrained case."""
    panels = []
    for audited, case in itertools.product(audits, RETRAINED):
        curves = case_curves(values_of(audited.values), audited.retrained, case, LOOKS)
        panels.append(RemovalPanel(audited.data, case, curves))
    return panels


def _sections(
    audits: Iterable[Audited],
    table: Callable[[Sequence[AuditFinding]], ResultTable],
    seeds_of: Callable[[Audited], str],
) -> list[str]:
    """Return the lines of a page with a table for each data set, and where its rows come from."""
    lines = []
    for audited in audits:
        lines += ["", f"**{audited.data}.** {_origin(audited, seeds_of)}"]
        if audited.findings:
            lines += ["", *table(audited.findings).to_markdown()]
    return [*lines[1:], ""]


def _origin(audited: Audited, seeds_of: Callable[[Audited], str]) -> str:
    """Return a link to the rows, and words on their seeds and on missing ones."""
    if not audited.findings:
        return "Missing: all rows."
    return f"[Rows](../audit/{audited.folder}/{FINDINGS}); {seeds_of(audited)}"


def _seeds_of_federations(audited: Audited) -> str:
    seeds = sorted({line["seed"] for line in audited.values})
    missing = missing_federations(audited.values)
    return f"seeds of the federations: {', '.join(seeds)}.{missing}"


def _seeds_of_measures(audited: Audited) -> str:
    """Return the seeds of federations and of retraining, and what is missing.

    If retraining is compared with the federations of only some seeds, these are named.
    """
    words = _seeds_of_federations(audited)
    for case in RETRAINED:
        seeds, beside = _seeds_beside_retraining(audited.values, case)
        if audited.retrained and beside and beside < seeds:
            alone = ", ".join(map(str, sorted(beside)))
            words += f" Retraining and removal, {case}: compared with seed {alone} only."
    trained = sorted({line["seed"] for line in audited.retrained})
    words += f" Seeds of retraining: {', '.join(trained) or 'none'}."
    count = len(RETRAINED) * RETRAINING_SEEDS
    measured = {(row["case"], row["seed"]) for row in audited.retrained}
    missing = count - len(measured)
    if missing:
        words += f" Missing: {missing} of {count} retrainings."
    return words


def _seeds_beside_retraining(lines: Lines, case: str) -> tuple[set[int], set[int]]:
    """Return a case's seeds with federations, and those whose members are the retrained ones."""
    values = values_of(lines)
    seeds: set[int] = set()
    beside: set[int] = set()
    for (name, case_of_values, rule), federations in values.items():
        if case_of_values == case and rule == _FIRST_RULE:
            seeds |= federations.keys()
            beside |= same_members(values, name, case).keys()
    return seeds, beside


class Answers:
    """The figures of findings, by valuation, question and case."""

    def __init__(self, all_findings: Iterable[AuditFinding]) -> None:
        self._findings: dict[str, dict[tuple[str, str], AuditFinding]] = {}
        for finding in all_findings:
            name = _SHOWN_AS.get(finding.valuation, finding.valuation)
            answers = self._findings.setdefault(name, {})
            answers[finding.question, finding.case] = finding

    def valuations(self) -> list[str]:
        """Return all valuations, in the order of the findings."""
        return list(self._findings)

    def shown_value(
        self, name: str, question: str, case: str, form: str = ".2f", scale: float = 1
    ) -> str:
        """Return a figure as text; a dash where there is none."""
        finding = self._findings[name].get((question, case))
        if finding is None:
            return "-"
        return format(scale * finding.value, form)

    def values_by_case(self, name: str, question: str) -> dict[str, float]:
        """Return a valuation's figures of a question, by case."""
        return {finding.case: finding.value for finding in self.findings_on(name, question)}

    def findings_on(self, name: str, question: str) -> list[AuditFinding]:
        """Return a valuation's answers to a question, one for each case."""
        return [answer for answer in self._findings[name].values() if answer.question == question]


def measures_table(all_findings: Sequence[AuditFinding]) -> ResultTable:
    """Return a table of the five measures, with a line for each valuation."""
    answers = Answers(all_findings)
    heading = ["valuation"]
    heading += [f"retraining, {case}" for case in RETRAINED]
    heading += [f"removal, {case}" for case in RETRAINED]
    heading += ["finds wrong labels", "finds others", "seeds", "rules", "largest gain"]
    seeds = seeds_of_gains(all_findings)
    lines = []
    for name in answers.valuations():
        detection = answers.values_by_case(name, DETECTION)
        detection.pop(_WRONG_LABELS, None)  # It has a column of its own.
        line = [name]
        line += [answers.shown_value(name, "retraining, Pearson", case) for case in RETRAINED]
        line += [answers.shown_value(name, AREA, case, form=".1f", scale=100) for case in RETRAINED]
        line.append(answers.shown_value(name, DETECTION, _WRONG_LABELS))
        line.append(_mean(detection))
        line.append(answers.shown_value(name, "stability, Spearman", "between seeds"))
        line.append(answers.shown_value(name, "stability, Spearman", "between aggregation rules"))
        line.append(_largest(answers.findings_on(name, GAIN), seeds))
        lines.append(line)
    return ResultTable("", heading, lines, num_labels=1)


def _mean(figures: Mapping[str, float]) -> str:
    if not figures:
        return "-"
    return f"{statistics.fmean(figures.values()):.2f}"


def _largest(gains: Sequence[AuditFinding], seeds: int) -> str:
    """Return the largest gain and its game, and the number of seeds if it is not of all."""
    if not gains:
        return "-"
    largest = max(gains, key=lambda gain: gain.value)
    words = largest.case
    few_seeds = largest.words_of_few(seeds)
    if few_seeds:
        words += f"; {few_seeds}"
    return f"{largest.value:.1f} ({words})"


def rules_table(all_findings: Sequence[AuditFinding]) -> ResultTable:
    """Return a table of rank correlations between two rules, with a line for each valuation."""
    answers = Answers(all_findings)
    pairs = [pair_of(_FIRST_RULE, other) for other in _OTHER_RULES]
    lines = []
    for name in answers.valuations():
        likeness = answers.values_by_case(name, BETWEEN_RULES)
        if not likeness:
            continue
        line = [name]
        line += [answers.shown_value(name, BETWEEN_RULES, pair) for pair in pairs]
        line.append(_mean(likeness))
        least = min(likeness, key=lambda pair: likeness[pair])
        line.append(f"{likeness[least]:.2f} ({least})")
        lines.append(line)
    heading = ["valuation", *pairs, "all pairs", "least"]
    return ResultTable("", heading, lines, num_labels=1)
