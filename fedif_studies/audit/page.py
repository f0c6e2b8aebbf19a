"""The page of an audit: a table for each question, with words on how to read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedif_flower.run.config import RunConfig
from fedif_flower.run.rows import read_rows
from fedif_flower.storage import write_atomically
from fedif_studies.audit.cases import IDENTITIES
from fedif_studies.audit.federation import RULES
from fedif_studies.audit.findings import GAIN, AuditFinding, findings, seeds_of_gains
from fedif_studies.audit.lines import missing_federations
from fedif_studies.audit.measure import RETRAINING, VALUES
from fedif_studies.lab.table import pivot
from fedif_studies.rows import put_derived

FINDINGS = "findings.csv"
PAGE = "audit.md"
# The page's sections: how the names of their questions begin, their titles and their words.
_WORDS = {
    "in-run": (
        "Agreement within the run",
        "Correlation with the exact Shapley values of the rounds: a coalition puts its members' "
        "parts of the step in, and is worth by how much the validation loss falls.",
    ),
    "retraining": (
        "Agreement with federations trained from scratch",
        "Correlation with the Shapley values of the game in which each coalition trains a "
        "federation of its own. The last line is how well two seeds of it agree.",
    ),
    "area between removal curves": (
        "Removal and addition",
        "Others train without the members of lowest values, or of highest: the mean difference in "
        "test accuracy. In random order it is 0; more is better.",
    ),
    "detection": (
        "Detection",
        "ROC-AUC of low values as a sign of who misbehaves: 1 is perfect, 0.5 chance. Whether the "
        "values are right is another question.",
    ),
    "share": (
        "Manipulation",
        "By which factor a member's share of all that is positive changes: 1 is no gain. Median "
        "over seeds; of fewer seeds where a member had no positive share, or nobody has one then. "
        f"{IDENTITIES} identities send their owner's update and divide its examples.",
    ),
    "stability": (
        "Stability",
        "Spearman correlation of honest members' values between seeds, and between rules "
        f"({', '.join(RULES)}).",
    ),
    "two rules": (
        "Stability over aggregation rules",
        "Spearman correlation of the same honest members' values under two rules, mean over seeds.",
    ),
}


def write_audit(folder: Path, config: RunConfig) -> Path:
    """Write the findings and the page from a folder's measurements, and return the page's path."""
    values = read_rows(folder / VALUES)
    all_findings = findings(values, read_rows(folder / RETRAINING))
    rows = [finding.rounded()._asdict() for finding in all_findings]
    put_derived(folder / FINDINGS, rows)
    seeds = {line["seed"] for line in values}
    lines = [
        f"# Audit of valuations: {config.dataset}",
        "",
        f"Written by `fedif audit`; the lines behind it: `{VALUES}`, `{RETRAINING}`, `{FINDINGS}`.",
        f"{config.num_clients} members, all of them in {config.num_server_rounds} rounds of "
        f"FedAvg, Dirichlet({config.dirichlet_alpha:g}) parts, model `{config.model}`, epochs: "
        f"{config.local_epochs}, seeds: {len(seeds)}.{missing_federations(values)}",
        "All valuations look at the same rounds.",
        "",
    ]
    for start, (title, words) in _WORDS.items():
        answers = [finding for finding in all_findings if finding.question.startswith(start)]
        if answers:
            lines += [f"## {title}", "", words, "", *_table(title, answers), ""]
    page = folder / PAGE
    write_atomically(page, "\n".join(lines))
    return page


def _table(title: str, answers: Sequence[AuditFinding]) -> list[str]:
    """Return a Markdown table with a line for each valuation and a column for each case.

    If there are more cases than valuations, cases are the lines.
    """
    cases = _cases(answers)
    valuations = [finding.valuation for finding in answers]
    has_cases_down = len(set(cases)) > len(set(valuations))
    seeds = seeds_of_gains(answers)
    cells = []
    for case, finding in zip(cases, answers, strict=True):
        shown = f"{finding.value:.3f}"
        few_seeds = finding.words_of_few(seeds)
        if finding.question == GAIN and few_seeds:
            shown += f" ({few_seeds})"
        if has_cases_down:
            cells.append(((case,), finding.valuation, shown))
        else:
            cells.append(((finding.valuation,), case, shown))
    head = "case" if has_cases_down else "valuation"
    # There is one answer for each valuation and case.
    return pivot(title, [head], cells, lambda answers_here: answers_here[0]).to_markdown()


def _cases(answers: Sequence[AuditFinding]) -> list[str]:
    """Return the case of each answer, with the kind of correlation if there are several kinds."""
    has_one_question = len({finding.question for finding in answers}) == 1
    cases = []
    for finding in answers:
        case = finding.case
        if not has_one_question:
            # The questions of a section differ by their last word, the kind of correlation.
            correlation = finding.question.rsplit(", ", 1)[-1]
            case += f", {correlation}"
        cases.append(case)
    return cases
