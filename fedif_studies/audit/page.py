"""An audit as one page: tables of every question, and the words to read them with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedif_flower.run.config import RunConfig
from fedif_flower.run.rows import read_rows
from fedif_flower.storage import write_atomically
from fedif_flower.tables import ResultTable
from fedif_studies.audit.cases import IDENTITIES
from fedif_studies.audit.federation import RULES
from fedif_studies.audit.findings import Finding, Values, findings
from fedif_studies.audit.measure import RETRAINING, VALUES
from fedif_studies.rows import add_rows

FINDINGS, PAGE = "findings.csv", "audit.md"
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
        f"over seeds. {IDENTITIES} identities send their owner's update and divide its examples.",
    ),
    "stability": (
        "Stability",
        "Spearman correlation of honest members' values between seeds, and between rules "
        f"({', '.join(RULES)}).",
    ),
}


def write_audit(folder: Path, config: RunConfig) -> Path:
    """Write findings and the page from what is measured in a folder; return the page's path."""
    values = Values(read_rows(folder / VALUES))
    found = findings(values, read_rows(folder / RETRAINING))
    rows = [one._replace(value=round(one.value, 6))._asdict() for one in found]
    add_rows(folder / FINDINGS, rows, anew=True)
    lines = [
        f"# Audit of valuations: {config.dataset}",
        "",
        f"Written by `fedif audit`; the lines behind it: `{VALUES}`, `{RETRAINING}`, `{FINDINGS}`.",
        f"{config.num_clients} members, all of them in {config.num_server_rounds} rounds of "
        f"FedAvg, Dirichlet({config.dirichlet_alpha:g}) parts, model `{config.model}`, epochs: "
        f"{config.local_epochs}, seeds: {len(values.seeds)}.",
        "All valuations look at the same rounds.",
        "",
    ]
    for start, (title, words) in _WORDS.items():
        own = [line for line in found if line.question.startswith(start)]
        if own:
            lines += [f"## {title}", "", words, "", *_table(title, own), ""]
    write_atomically(folder / PAGE, "\n".join(lines))
    return folder / PAGE


def _table(title: str, found: Sequence[Finding]) -> list[str]:
    """Return a Markdown table: valuations down, questions and cases across, or the longer down."""
    questions = list(dict.fromkeys(line.question for line in found))
    cases = list(dict.fromkeys((line.question, line.case) for line in found))
    heads = [
        case if len(questions) == 1 else f"{case}, {question.rsplit(', ', 1)[-1]}"
        for question, case in cases
    ]
    valuations = list(dict.fromkeys(line.valuation for line in found))
    values = {(line.valuation, line.question, line.case): line.value for line in found}
    cells = [
        [f"{values[v, *case]:.3f}" if (v, *case) in values else "-" for case in cases]
        for v in valuations
    ]
    head, down, across = "valuation", valuations, heads
    if len(cases) > len(valuations):
        cells = [list(column) for column in zip(*cells, strict=True)]
        head, down, across = "case", heads, valuations
    lines = [[name, *row] for name, row in zip(down, cells, strict=True)]
    return ResultTable(title, [head, *across], lines, num_labels=1).to_markdown()
