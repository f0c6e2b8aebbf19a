"""The report of a run: its result in a few figures, a table on the terminal, a page for members."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch
from rich.console import Console

from fedif_flower.errors import IncompleteRunError, TrainingFailedError
from fedif_flower.run.completeness import LETTERS, NOT_ASKED, Completeness, is_failed
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.plots import plot_members, plot_progress
from fedif_flower.run.results import UNFINISHED, Run
from fedif_flower.run.rows import Line
from fedif_flower.server.summary import Scoring
from fedif_flower.storage import write_atomically
from fedif_flower.tables import ResultTable, shown_number
from fedif_flower.tasks.task import Metric

_UNKNOWN = "-"
Points = dict[int, list[tuple[int, float]]]  # Rounds and values, by client.


def write_report(
    run: Run, summary: Mapping[str, Any], title: str, *, is_finished: bool = True
) -> None:
    """Write pictures and ``report.md`` beside the tables of a run that is over.

    One that is not finished was ended by an error.
    """
    folder, rounds = run.folder, run.lines("rounds")
    lines = [f"# {title}", "", *_figures(summary).to_markdown(), ""]
    if told := _remainder(summary):
        lines += [*wrap(told, 100), ""]
    for remark in summary.get("data_remarks", ()):
        lines += [*wrap(f"Data, {remark}.", 100), ""]
    losses = ("test_loss", "validation_loss")
    if any(row.get(name) is not None for row in rounds for name in losses):
        picture = plot_progress(rounds, folder, title)
        lines += [f"![{picture.stem} over rounds]({picture.name})", ""]
    known, last = {m.client_id: (m.label, m.malicious) for m in run.members}, run.last_round
    contributed: Points = defaultdict(lambda: [(0, 0.0)])
    for row in run.attributed[1]:
        so_far = contributed[row["client_id"]]
        so_far.append((row["round"], so_far[-1][1] + row["contribution"]))
    scores: Points = defaultdict(list)
    for row in run.lines("clients"):
        if row["weight_score"] is not None:
            scores[row["client_id"]].append((row["round"], row["weight_score"]))
    gain = "decrease of the validation loss"
    for points, place, axis, what in (
        (contributed, folder.pictures["attribution"], gain, "Contribution"),
        (scores, folder.pictures["weight-scores"], r"weight score $\Omega$", "Weight score"),
    ):
        if points:
            plot_members(
                points,
                known,
                last,
                place,
                ylabel=axis,
                title=f"{what} of each client over the rounds",
            )
            lines += [f"![{what.lower()}s over rounds]({place.name})", ""]
    members = run.table()
    words = _column_words(members.heading, Scoring.from_record(summary.get("scoring")))
    lines += ["## Members", "", *wrap(words, 100), "", *members.to_markdown()]
    lines += _completeness(run.completeness, is_finished=is_finished)
    write_atomically(folder.report, "\n".join(lines) + "\n")


def _figures(summary: Mapping[str, Any], title: str = "") -> ResultTable:
    """Return the figures that a person looks at first, as far as they are known."""
    rows = [
        ("test accuracy", _percent(summary["test_accuracy"])),
        ("validation accuracy", _percent(summary["validation_accuracy"])),
        *(
            (f"{split} {name}", shown_number(figures[split], ".4g"))
            for name, figures in summary.get("metrics", {}).items()
            for split in ("test", "validation")
        ),
        ("attack success rate", _percent(summary.get("attack_success"))),
    ]
    if sums := summary.get("attribution"):
        less = "less" if sums["remainder"] < 0 else "and"
        by = f"{sums['attributed']:.4f} by members, {less} {abs(sums['remainder']):.4f} by nobody"
        rows.append(("decrease of the validation loss", f"{sums['decrease']:.4f}: {by}"))
    replies = "{accepted} / {rejected} / {failed}".format(**summary)
    rows += [
        ("weight of malicious clients", _percent(summary["malicious_weight_share"])),
        ("detection AUC", shown_number(summary["detection_auc"], ".3f")),
        ("training, s per client and round", shown_number(summary["train_seconds_per_client"])),
        ("aggregation, s per round", shown_number(summary["aggregation_seconds_per_round"])),
        ("replies accepted / rejected / failed", replies),
        ("rounds", str(summary["rounds"])),
        *troubles(summary),
    ]
    known = [row for row in rows if row[1] != _UNKNOWN]
    return ResultTable(title, ("figure", "value"), known, num_labels=1)


def require_last_round(run_dir: Path) -> None:
    """Raise TrainingFailedError if the last round of a run that came to its end failed."""
    summary = RunFolder(run_dir).summary.read()
    if summary.get("last_round_failed"):
        raise TrainingFailedError(
            f"the last round failed, as {summary['failed_rounds']} of {summary['rounds']} did; "
            f"results: {run_dir}"
        )


def require_complete(run_dir: Path) -> None:
    """Raise an error unless a run came to a good end.

    Raises
    ------
    TrainingFailedError
        If its last round failed.
    IncompleteRunError
        If too little of what it asked for came.
    """
    require_last_round(run_dir)
    found = RunFolder(run_dir).summary.read().get("completeness", {})
    if found.get("verdict") == "incomplete":
        raise IncompleteRunError(
            f"the run is incomplete: {' '.join(found['reasons'])} Results: {run_dir}"
        )


def print_summary(run_dir: Path, console: Console | None = None) -> None:
    """Print a completed run's table and where its report lies."""
    console, run = console or Console(), Run(run_dir)
    _figures(run.summary, run.title).print(console)
    found = run.completeness
    style = None if found.verdict == "complete" else "yellow"
    console.print(found.headline, style=style, soft_wrap=True, markup=False, highlight=False)
    console.print(f"Report: {run.folder.report}", soft_wrap=True, highlight=False)


def troubles(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a completed run must not hide; nothing where all went well."""
    shown = []
    if failed := summary.get("failed_rounds"):
        last = ", the last among them" if summary["last_round_failed"] else ""
        shown.append(("rounds that failed", f"{failed}{last}"))
    if kept := summary.get("kept_rounds"):
        shown.append(("rounds that gave nobody weight", str(kept)))
    return shown


def _remainder(summary: Mapping[str, Any]) -> str:
    """Return what the part of the decrease is that has no owner; empty: there is none."""
    sums = summary.get("attribution")
    if sums is None or not sums["remainder"]:
        return ""
    way = "more" if sums["remainder"] < 0 else "less"
    return (
        f"The members' contributions add up to {abs(sums['remainder']):.4f} {way} than the "
        "validation loss fell by. This remainder is nobody's: the error of measuring along a step "
        "at a few of its points, which grows with the step, and the effect of batch-norm "
        "statistics and of a server optimizer's momentum that faded."
    )


def _percent(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{100 * value:.1f} %"


def _completeness(found: Completeness, *, is_finished: bool) -> list[str]:
    """Return a Markdown section: the verdict, and who lacks what, with its rounds as letters."""
    told = found.headline
    if not is_finished:
        until = f"an error ended the run after round {found.rounds}. Until then:"
        told = f"{UNFINISHED.capitalize()}: {until} {' '.join(found.reasons)}"
    lines = ["", "## Completeness", "", *wrap(told, 100)]
    shown = [member for member in found.members if member.has_gaps or member.count["not admitted"]]
    if not shown:
        return lines
    counted = ("asked", "answered", "late", "missing", "refused", "paused", "offline")
    cells = []
    for member in shown:
        part = member.participation
        share = "" if part is None else f"{100 * part:.0f} %"
        cells.append([member.name, *(str(member.count[n]) for n in counted), share, member.seen])
    columns = ("member", *counted, "took part in", "last seen")
    lines += ["", *ResultTable("", columns, cells, num_labels=1).to_markdown()]
    if others := len(found.members) - len(shown):
        lines += ["", f"Of the other {others} nothing is missing."]
    if drawn := [member for member in shown if member.rounds]:
        width = max(len(member.name) for member in drawn)
        meanings = ", ".join(f"{letter} {what}" for what, letter in LETTERS.items())
        lines += ["", *wrap(f"Each round: {meanings}, {NOT_ASKED} not asked.", 100), "", "```"]
        lines += [*(f"{member.name:{width}}  {member.rounds}" for member in drawn), "```"]
    return lines


def _column_words(columns: Sequence[str], scores: Scoring | None) -> str:
    """Return what the columns mean."""
    meanings = {
        "contribution": "Contribution is by how much the member's updates lowered the validation "
        "loss over the run, by path attribution, in nats for a cross-entropy. It adds up over "
        "rounds and over members.",
        "weight score": "Weight score is the strategy's score (Omega) after the member's last "
        "round. It is no contribution, and nobody should be paid by it. "
        + (scores.words() if scores else ""),
        "weight": "Weight is the sum of the member's aggregation weights over its rounds. Away: "
        "no reply came; failed: an error of the client's app.",
    }
    return " ".join(meanings[column].strip() for column in columns if column in meanings)


def summarize(
    rounds: Sequence[Line], clients: Sequence[Line], metrics: Sequence[Metric] = ()
) -> dict[str, Any]:
    """Return a run's result in a few figures, from the lines of its tables.

    ``malicious_weight_share`` is the share of all aggregation weight that went to malicious
    clients; ``detection_auc`` the area under the ROC curve of "low weight score means malicious"
    over the clients that took part, with each client's last weight score. Either is ``None``
    where it is not defined, and so is ``attack_success``: after the last round, the share of test
    images with a backdoor's trigger that get its target class. ``metrics`` has the figures of a
    task's own metrics, and of the loss where there is no accuracy.
    """
    trained = [row for row in rounds if row["round"]]
    tested = [row for row in trained if row.get("test_accuracy") is not None]
    accuracies = [row["test_accuracy"] for row in tested]
    weight = math.fsum(row["weight"] or 0.0 for row in clients)
    bad = math.fsum(row["weight"] or 0.0 for row in clients if row["malicious"])
    any_malicious = any(row["malicious"] for row in clients)
    seconds = _column(clients, "train_seconds")
    failed = list(map(is_failed, rounds))
    return {
        "rounds": max((row["round"] for row in rounds), default=0),
        "test_accuracy": accuracies[-1] if accuracies else None,
        "test_accuracy_last_ten": _mean(of_last_ten(tested, "test_accuracy")),
        "test_accuracy_best": max(accuracies, default=None),
        "validation_accuracy": next(iter(_column(rounds, "validation_accuracy")[::-1]), None),
        "attack_success": tested[-1].get("attack_success") if tested else None,
        **_metrics(trained, metrics, with_loss=not _column(rounds, "test_accuracy")),
        "malicious_weight_share": bad / weight if weight > 0 and any_malicious else None,
        "detection_auc": detection_auc(clients),
        "train_seconds_per_client": _mean(seconds),
        "train_seconds_total": sum(seconds),
        "aggregation_seconds_per_round": _mean(_column(trained, "aggregation_seconds")),
        "evaluations_per_round": _mean(_column(trained, "evaluations")),
        **{name: sum(_column(rounds, name)) for name in ("accepted", "rejected", "failed")},
        "failed_rounds": sum(failed),
        "kept_rounds": sum(row["status"] == "kept" for row in rounds),
        "last_round_failed": bool(failed) and failed[-1],
    }


def of_last_ten(lines: Sequence[Line], name: str) -> list[Any]:
    """Return what a column has of the last ten rounds, of which not all need to be evaluated."""
    found = {int(line["round"]): line[name] for line in lines if line.get(name) not in (None, "")}
    return [value for number, value in [*found.items()][-10:] if number > max(found) - 10]


def _column(lines: Sequence[Line], name: str) -> list[Any]:
    """Return what there is in a column."""
    return [value for line in lines if (value := line.get(name)) is not None]


def _metrics(
    trained: Sequence[Line], metrics: Sequence[Metric], *, with_loss: bool
) -> dict[str, Any]:
    """Return the figures of a task's metrics by name; nothing where accuracy says it all."""
    wanted = [(metric.name, metric.key, metric.higher_is_better) for metric in metrics]
    found = {}
    for name, key, higher_is_better in [*wanted, *[("loss", "loss", False)] * with_loss]:
        test, validation = (_column(trained, f"{split}_{key}") for split in ("test", "validation"))
        if test and validation:
            found[name] = {
                "higher_is_better": higher_is_better,
                "test": test[-1],
                "test_last_ten": _mean(of_last_ten(trained, f"test_{key}")),
                "test_best": max(test) if higher_is_better else min(test),
                "validation": validation[-1],
            }
    return {"metrics": found} if found else {}


def detection_auc(clients: Iterable[Line]) -> float | None:
    """Return how well low weight scores tell malicious clients from honest ones, in [0, 1]."""
    scored = {row["client_id"]: row for row in clients if row["weight_score"] is not None}
    malicious = [bool(row["malicious"]) for row in scored.values()]  # Each client's latest.
    if len(set(malicious)) < 2:
        return None
    # Imported here: it takes a second, of every client and command line.
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(malicious, [-row["weight_score"] for row in scored.values()]))


def describe_machine(device: str) -> dict[str, Any]:
    """Return versions and hardware, for a figure to be read with."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "flwr": version("flwr"),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "device": device,
    }


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
