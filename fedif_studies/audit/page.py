"""An audit as one page: tables of every question, pictures, and the words to read them with."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import torch

from fedif_flower.run.config import RunConfig
from fedif_flower.run.plots import new_figure, save_figure
from fedif_flower.storage import write_atomically
from fedif_studies.audit.cases import HONEST, IDENTITIES, RETRAINED
from fedif_studies.audit.findings import (
    RANDOM,
    Finding,
    Values,
    curve,
    findings,
    random_curve,
)
from fedif_studies.audit.measure import Measurements, coalition_utilities

FINDINGS, PAGE = "findings.csv", "audit.md"
_WORDS = {
    "in-run": (
        "Agreement within the run",
        "Correlation with the exact Shapley values of the rounds themselves: in every round a "
        "coalition puts its members' parts of the step in, with the weights that were applied, and "
        "is worth by how much the validation loss falls. Mean over seeds.",
    ),
    "retraining": (
        "Agreement with federations trained from scratch",
        "Correlation with the Shapley values of the game in which each coalition trains a "
        "federation of its own, and is worth its (negative) test loss. The last line is the "
        "ceiling: how well two such tables of different seeds agree.",
    ),
    "area between removal curves": (
        "Removal and addition",
        "Members are dropped one by one and the others trained from scratch: lowest values first, "
        "or highest first. The figure is the mean difference in test accuracy between the two; in "
        "random order it is 0. More is better.",
    ),
    "detection": (
        "Detection",
        "ROC-AUC of low values as a sign of those who misbehave: 1 is perfect, 0.5 chance. This is "
        "another claim than that the values are right: a member with few examples, say, "
        "contributes less, but does nothing wrong.",
    ),
    "share": (
        "Manipulation",
        "By which factor a member's share of all that is positive changes: 1 is no gain. Median "
        f"over seeds. The {IDENTITIES} identities send their owner's update and divide its "
        "examples between them.",
    ),
    "stability": (
        "Stability",
        "Spearman correlation of the honest members' values between seeds of the training, and "
        "between aggregation rules (FedAvg, FedIF, RFA).",
    ),
}


def write_audit(measurements: Measurements, config: RunConfig) -> Path:
    """Write findings, pictures and the page from what is measured; return the page's path."""
    values, retrained = Values(measurements.values()), measurements.retrained()
    found = findings(values, retrained)
    folder = measurements.folder
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Finding._fields)
    writer.writerows(line._replace(value=round(line.value, 6)) for line in found)
    write_atomically(folder / FINDINGS, text.getvalue())
    pictures = {}
    for case in RETRAINED:
        tables = coalition_utilities((r for r in retrained if r.case == case), "test_accuracy")
        if tables:
            name = f"removal-{case.replace(' ', '-')}.png"
            accuracy = torch.stack(list(tables.values())).mean(dim=0)
            _plot_removal(values, case, accuracy, folder / name)
            pictures[case] = name
    lines = _head(config, values)
    for start, (title, words) in _WORDS.items():
        own = [line for line in found if line.question.startswith(start)]
        if own:
            lines += [f"## {title}", "", words, "", *_table(own), ""]
        if start.startswith("area") and own:
            for case, name in pictures.items():
                lines += [f"![test accuracy as members are dropped, {case}]({name})", ""]
    write_atomically(folder / PAGE, "\n".join(lines))
    return folder / PAGE


def _head(config: RunConfig, values: Values) -> list[str]:
    return [
        f"# Audit of valuations: {config.dataset}",
        "",
        "Written by `fedif audit`; the lines behind it are in `values.csv`, `retraining.csv` and",
        "`findings.csv`.",
        "",
        f"{config.num_clients} members, all of them in {config.num_server_rounds} rounds of",
        f"FedAvg, Dirichlet({config.dirichlet_alpha:g}) parts, model `{config.model}`, epochs: "
        f"{config.local_epochs}, seeds: {len(values.seeds)}.",
        "All valuations look at the same rounds.",
        "",
    ]


def _table(lines: Sequence[Finding]) -> list[str]:
    """Return a Markdown table: valuations down, questions and cases across, or the longer down."""
    questions = list(dict.fromkeys(line.question for line in lines))
    cases = list(dict.fromkeys((line.question, line.case) for line in lines))
    heads = [
        case if len(questions) == 1 else f"{case}, {question.rsplit(', ', 1)[-1]}"
        for question, case in cases
    ]
    valuations = list(dict.fromkeys(line.valuation for line in lines))
    values = {(line.valuation, line.question, line.case): line.value for line in lines}
    cells = [
        [f"{values[v, *case]:.3f}" if (v, *case) in values else "-" for case in cases]
        for v in valuations
    ]
    if len(cases) > len(valuations):
        cells = [list(column) for column in zip(*cells, strict=True)]
        head, down, across = "case", heads, valuations
    else:
        head, down, across = "valuation", valuations, heads
    table = [f"| {head} | {' | '.join(across)} |", f"| --- |{' ---: |' * len(across)}"]
    return table + [
        f"| {name} | {' | '.join(row)} |" for name, row in zip(down, cells, strict=True)
    ]


def _plot_removal(values: Values, case: str, accuracy: torch.Tensor, path: Path) -> None:
    """Draw the accuracy as the lowest (and the highest) valued members are dropped."""
    figure = new_figure(4.5)
    axes = figure.subplots(1, 2, sharey=True)
    dropped = range(1, len(random_curve(accuracy)) + 1)
    for axis, sign, title in ((axes[0], 1, "lowest first"), (axes[1], -1, "highest first")):
        for valuation in values.valuations:
            own = values.of(valuation, case, 0)
            if own is not None:
                axis.plot(dropped, curve(sign * own, accuracy), label=valuation, linewidth=1.2)
        axis.plot(dropped, random_curve(accuracy), "k:", label=RANDOM)
        axis.set(xlabel="members dropped", title=title)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test accuracy, trained from scratch")
    axes[0].legend(fontsize=6)
    names = "nobody misbehaves" if case == HONEST else case
    figure.suptitle(f"Members dropped one by one: {names}")
    save_figure(figure, path)
