"""An audit as one page: tables of every question, and the words to read them with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedif_flower.run.config import RunConfig
from fedif_flower.run.rows import read_rows
from fedif_flower.storage import write_atomically
from fedif_studies.audit.cases import IDENTITIES
from fedif_studies.audit.federation import RULES
from fedif_studies.audit.findings import Finding, findings
from fedif_studies.audit.measure import RETRAINING, VALUES
from fedif_studies.lab.table import pivot
from fedif_studies.rows import put_derived

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
    values = read_rows(folder / VALUES)
    found = findings(values, read_rows(folder / RETRAINING))
    rows = [one._replace(value=round(one.value, 6))._asdict() for one in found]
    put_derived(folder / FINDINGS, rows)
    lines = [
        f"# Audit of valuations: {config.dataset}",
        "",
        f"Written by `fedif audit`; the lines behind it: `{VALUES}`, `{RETRAINING}`, `{FINDINGS}`.",
        f"{config.num_clients} members, all of them in {config.num_server_rounds} rounds of "
        f"FedAvg, Dirichlet({config.dirichlet_alpha:g}) parts, model `{config.model}`, epochs: "
        f"{config.local_epochs}, seeds: {len({line['seed'] for line in values})}.",
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
    many = len({one.question for one in found}) > 1

    def case(one: Finding) -> str:
        return f"{one.case}, {one.question.rsplit(', ', 1)[-1]}" if many else one.case

    values = [(one.valuation, case(one), one.value) for one in found]
    head, (down, across) = "valuation", (len({v[i] for v in values}) for i in (0, 1))
    if across > down:
        head, values = "case", [(name, valuation, value) for valuation, name, value in values]
    lines = (((line,), column, value) for line, column, value in values)
    return pivot(title, [head], lines, lambda own: f"{own[0]:.3f}").to_markdown()
