"""The report of a run: a table on the terminal, a page for the members."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedif_flower.errors import TrainingFailedError
from fedif_flower.run.plots import plot_accuracy, plot_contributions
from fedif_flower.run.recorder import RunRecorder
from fedif_flower.run.rows import ClientRow
from fedif_flower.storage import write_atomically

REPORT, SUMMARY = "report.md", "summary.json"


def write_report(recorder: RunRecorder, summary: Mapping[str, Any]) -> None:
    """Write pictures, ``report.md`` and, last of all, ``summary.json``."""
    run_dir, config = recorder.run_dir, recorder.config
    title = f"{config.strategy} on {config.dataset}, attack: {config.attack}"
    plot_accuracy(recorder.rounds, run_dir / "accuracy.png", title)
    drawn = plot_contributions(
        recorder.clients, config.num_server_rounds, run_dir / "contributions.png"
    )
    lines = [f"# {title}", "", "| figure | value |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in summary_rows(summary)]
    lines += ["", "![accuracy over rounds](accuracy.png)", ""]
    if drawn:
        lines += ["![contributions over rounds](contributions.png)", ""]
    lines += member_table(recorder.clients)
    write_atomically(run_dir / REPORT, "\n".join(lines) + "\n")
    recorder.complete(summary)


def member_table(clients: Sequence[ClientRow]) -> list[str]:
    """Return a Markdown table with what each member contributed, the best first."""
    members: dict[int, list[ClientRow]] = {}
    for row in clients:
        members.setdefault(row.client_id, []).append(row)
    ranked = sorted(members.values(), key=_rank)
    lines = [
        "## Members",
        "",
        "Contribution is the smoothed score Omega after the member's last round; accumulative",
        "influence the paper's INF; weight the sum of its aggregation weights over its rounds.",
        "",
        "| partition | node | rounds | refused | contribution | accumulative influence "
        "| weight | marked |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for rows in ranked:
        lines += [
            f"| {rows[-1].partition_id} | {rows[-1].client_id} | {len(rows)} "
            f"| {sum(bool(row.rejection) for row in rows)} "
            f"| {_shown(rows, 'contribution')} | {_shown(rows, 'accumulative_influence')} "
            f"| {sum(row.weight or 0.0 for row in rows):.3f} "
            f"| {'malicious' if rows[-1].malicious else ''} |"
        ]
    return lines


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures that a person looks at first."""
    training, aggregation = (
        summary["train_seconds_per_client"],
        summary["aggregation_seconds_per_round"],
    )
    success = summary.get("attack_success")
    backdoor = [] if success is None else [("attack success rate", _percent(success))]
    return [
        ("test accuracy", _percent(summary["test_accuracy"])),
        ("validation accuracy", _percent(summary["validation_accuracy"])),
        *backdoor,
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
    table = Table(title=f"{config['strategy']} on {config['dataset']}, attack: {config['attack']}")
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


def _rank(rows: Sequence[ClientRow]) -> tuple[float, int, int]:
    return -_last(rows, "contribution"), rows[-1].partition_id, rows[-1].client_id


def _last(rows: Sequence[ClientRow], name: str) -> float:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return float(values[-1]) if values else float("-inf")


def _shown(rows: Sequence[ClientRow], name: str) -> str:
    value = _last(rows, name)
    return "" if value == float("-inf") else f"{value:.4f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
