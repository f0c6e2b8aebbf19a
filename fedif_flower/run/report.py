"""The report of a run: a table on the terminal, a page for the members."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fedif_flower.errors import TrainingFailedError
from fedif_flower.run.config import subject_of
from fedif_flower.run.members import member_table
from fedif_flower.run.plots import plot_attribution, plot_progress, plot_scores
from fedif_flower.storage import write_atomically
from fedif_flower.strategies.attributed import RoundAttribution, sums_by_client

if TYPE_CHECKING:
    from fedif_flower.run.recorder import RunRecorder
    from fedif_flower.run.writer import RunWriter

REPORT, SUMMARY = "report.md", "summary.json"


def write_report(
    recorder: RunRecorder, summary: Mapping[str, Any], attributed: Sequence[RoundAttribution] = ()
) -> None:
    """Write pictures, ``report.md`` and, last of all, ``summary.json``.

    ``attributed`` are the run's rounds, where it attributed them.
    """
    write_pages(recorder, summary, attributed)
    recorder.complete(summary)


def write_pages(
    writer: RunWriter, summary: Mapping[str, Any], attributed: Sequence[RoundAttribution] = ()
) -> None:
    """Write pictures and ``report.md``."""
    run_dir, clients, last = writer.run_dir, writer.clients, writer.last_round
    by_score = plot_scores(clients, last, run_dir / "weight-scores.png")
    by_loss = plot_attribution(attributed, clients, last, run_dir / "attribution.png")
    lines = [f"# {writer.title}", "", "| figure | value |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in summary_rows(summary)]
    lines += [""]
    if any(row.test_loss is not None or row.validation_loss is not None for row in writer.rounds):
        picture = plot_progress(writer.rounds, writer.metrics, run_dir, writer.title)
        lines += [f"![{picture.stem} over rounds]({picture.name})", ""]
    if by_loss:
        lines += ["![attributed contributions over rounds](attribution.png)", ""]
    if by_score:
        lines += ["![weight scores over rounds](weight-scores.png)", ""]
    contributed = sums_by_client(attributed) if attributed else None
    lines += member_table(clients, contributed, writer.scoring, writer.names)
    write_atomically(run_dir / REPORT, "\n".join(lines) + "\n")


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures that a person looks at first."""
    training, aggregation = (
        summary["train_seconds_per_client"],
        summary["aggregation_seconds_per_round"],
    )
    success = summary.get("attack_success")
    backdoor = [] if success is None else [("attack success rate", _percent(success))]
    return [
        *_quality(summary),
        *backdoor,
        *_gained(summary),
        ("weight of malicious clients", _percent(summary["malicious_weight_share"])),
        ("detection AUC", _number(summary["detection_auc"], ".3f")),
        ("training, s per client and round", _number(training, ".4f")),
        ("aggregation, s per round", _number(aggregation, ".4f")),
        (
            "replies accepted / rejected / failed",
            "{accepted} / {rejected} / {failed}".format(**summary),
        ),
        ("rounds", str(summary["rounds"])),
        *troubles(summary),
    ]


def _quality(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how good the model is: its accuracy where that is defined, and the task's metrics."""
    metrics = summary.get("metrics", {})
    accuracy = [
        ("test accuracy", _percent(summary["test_accuracy"])),
        ("validation accuracy", _percent(summary["validation_accuracy"])),
    ]
    undefined = metrics and summary["test_accuracy"] is None
    return ([] if undefined else accuracy) + [
        (f"{split} {name}", _number(figures[split], ".4g"))
        for name, figures in metrics.items()
        for split in ("test", "validation")
    ]


def run_title(settings: Mapping[str, Any], subject: str) -> str:
    """Return what a run is called."""
    return f"{settings['strategy']} on {subject}, attack: {settings['attack']}"


def require_last_round(run_dir: Path) -> None:
    """Raise TrainingFailedError if the last round of a run that came to its end failed."""
    summary = json.loads((run_dir / SUMMARY).read_text())
    if summary.get("last_round_failed"):
        raise TrainingFailedError(
            f"the last round failed, as {summary['failed_rounds']} of {summary['rounds']} did; "
            f"results: {run_dir}"
        )


def print_summary(run_dir: Path, console: Console | None = None) -> None:
    """Print a completed run's table and where its report lies."""
    console = console or Console()
    summary = json.loads((run_dir / SUMMARY).read_text())
    config = summary["config"]
    table = Table(title=run_title(config, subject_of(config)))
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in summary_rows(summary):
        table.add_row(name, value)
    console.print(table)
    console.print(f"Report: {(run_dir / REPORT).absolute()}", soft_wrap=True, highlight=False)


def troubles(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a completed run must not hide; nothing where all went well."""
    shown = []
    if failed := summary.get("failed_rounds"):
        last = ", the last among them" if summary["last_round_failed"] else ""
        shown.append(("rounds that failed", f"{failed}{last}"))
    if unnamed := summary.get("unnamed_members"):
        shown.append(("members that named no partition", str(unnamed)))
    return shown


def _gained(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return by how much the validation loss fell, and how much of that has an owner."""
    if (sums := summary.get("attribution")) is None:
        return []
    fell = f"{sums['decrease']:.4f}, of which {sums['attributed']:.4f} are attributed"
    return [("decrease of the validation loss", fell)]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
