"""The report of a run: a table on the terminal, a page for the members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.table import Table

from fedif_flower.errors import IncompleteRunError, TrainingFailedError
from fedif_flower.run.completeness import LETTERS, NOT_ASKED, Completeness
from fedif_flower.run.config import subject_of
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.plots import plot_attribution, plot_progress, plot_scores
from fedif_flower.run.rows import ClientRow, RoundRow
from fedif_flower.storage import write_atomically
from fedif_flower.strategies.attributed import RoundAttribution, sums_by_client
from fedif_flower.strategies.scoring import Scoring

_UNKNOWN = "-"


@dataclass(frozen=True)
class ReportedRun:
    """What a report tells of a run.

    Attributes
    ----------
    title : str
        Of the page.
    rounds, clients : sequence of RoundRow and of ClientRow
        The lines of its tables.
    last_round : int
        How far pictures reach.
    completeness : Completeness
        Whether what it asked for came.
    names : mapping of int to str
        What the operator calls members, by client id.
    scoring : Scoring, optional
        How weight scores come about.
    attributed : sequence of RoundAttribution
        The rounds, where they were attributed.
    """

    title: str
    rounds: Sequence[RoundRow]
    clients: Sequence[ClientRow]
    last_round: int
    completeness: Completeness
    names: Mapping[int, str] = field(default_factory=dict)
    scoring: Scoring | None = None
    attributed: Sequence[RoundAttribution] = ()


def write_report(folder: RunFolder, run: ReportedRun, summary: Mapping[str, Any]) -> None:
    """Write pictures and ``report.md``."""
    clients, last = run.clients, run.last_round
    by_score = plot_scores(clients, last, folder.score_picture, run.names)
    by_loss = plot_attribution(
        *(run.attributed, clients, last, folder.attribution_picture, run.names)
    )
    lines = [f"# {run.title}", "", "| figure | value |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in summary_rows(summary)]
    lines += [""]
    if told := _remainder(summary):
        lines += [*wrap(told, 100), ""]
    if any(row.test_loss is not None or row.validation_loss is not None for row in run.rounds):
        picture = plot_progress(run.rounds, folder, run.title)
        lines += [f"![{picture.stem} over rounds]({picture.name})", ""]
    if by_loss:
        lines += ["![attributed contributions over rounds](attribution.png)", ""]
    if by_score:
        lines += ["![weight scores over rounds](weight-scores.png)", ""]
    lines += [*member_table(run), *completeness_table(run.completeness)]
    write_atomically(folder.report, "\n".join(lines) + "\n")


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures that a person looks at first, as far as they are known."""
    training, aggregation = (
        summary["train_seconds_per_client"],
        summary["aggregation_seconds_per_round"],
    )
    success = summary.get("attack_success")
    backdoor = [] if success is None else [("attack success rate", _percent(success))]
    rows = [
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
    return [row for row in rows if row[1] != _UNKNOWN]


def _quality(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how good the model is: its accuracy, and the task's metrics."""
    return [
        ("test accuracy", _percent(summary["test_accuracy"])),
        ("validation accuracy", _percent(summary["validation_accuracy"])),
        *(
            (f"{split} {name}", _number(figures[split], ".4g"))
            for name, figures in summary.get("metrics", {}).items()
            for split in ("test", "validation")
        ),
    ]


def run_title(settings: Mapping[str, Any], subject: str) -> str:
    """Return what a run is called."""
    named = settings.get("attack", "none")  # A RunWriter knows of none.
    attack = "" if named == "none" else f", attack: {named}"
    return f"{settings['strategy']} on {subject}{attack}"


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
    console, folder = console or Console(), RunFolder(run_dir)
    summary = folder.summary.read()
    config = summary["config"]
    table = Table(title=run_title(config, subject_of(config)))
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in summary_rows(summary):
        table.add_row(name, value)
    console.print(table)
    if found := summary.get("completeness"):
        told = f"{found['verdict'].capitalize()}: {' '.join(found['reasons'])}"
        style = None if found["verdict"] == "complete" else "yellow"
        console.print(told, style=style, soft_wrap=True, markup=False, highlight=False)
    console.print(f"Report: {folder.report}", soft_wrap=True, highlight=False)


def troubles(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a completed run must not hide; nothing where all went well."""
    shown = []
    if failed := summary.get("failed_rounds"):
        last = ", the last among them" if summary["last_round_failed"] else ""
        shown.append(("rounds that failed", f"{failed}{last}"))
    if kept := summary.get("kept_rounds"):
        shown.append(("rounds that gave nobody weight", str(kept)))
    if unnamed := summary.get("unnamed_members"):
        shown.append(("members that named no partition", str(unnamed)))
    return shown


def _gained(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return by how much the validation loss fell, and how much of that has an owner."""
    if (sums := summary.get("attribution")) is None:
        return []
    nobody = f"{'less' if sums['remainder'] < 0 else 'and'} {abs(sums['remainder']):.4f} by nobody"
    fell = f"{sums['decrease']:.4f}: {sums['attributed']:.4f} by members, {nobody}"
    return [("decrease of the validation loss", fell)]


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


def _number(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)


def member_table(run: ReportedRun) -> list[str]:
    """Return a Markdown table of the members, the largest contribution first.

    Without attribution the weight score decides the order.
    """
    clients, turns = run.clients, {member.client_id: member for member in run.completeness.members}
    contributed = sums_by_client(run.attributed) if run.attributed else None
    members: dict[int, list[ClientRow]] = {}
    for row in clients:
        members.setdefault(row.client_id, []).append(row)

    def rank(rows: Sequence[ClientRow]) -> tuple[float, int, int]:
        last = rows[-1]
        by_loss = None if contributed is None else contributed.get(last.client_id, 0.0)
        value = _last(rows, "weight_score") if by_loss is None else by_loss
        return -(float("-inf") if value is None else value), last.partition_id, last.client_id

    lines: list[dict[str, str]] = []
    for client_id, rows in sorted(members.items(), key=lambda found: rank(found[1])):
        found = turns[client_id]
        weights = [row.weight for row in rows if row.weight is not None]
        lines.append(
            {
                "member": found.name.replace("|", "\\|"),
                # In a simulation the partition, by which a client is called, is its id.
                "node": "" if rows[-1].partition_id == client_id else str(client_id),
                "asked": str(found.asked),
                "refused": str(found.refused),
                "missing": "; ".join(
                    [str(found.missing)] * bool(found.missing) + ["revoked"] * _ended(rows)
                ),
                "contributed": _shown(
                    None if contributed is None else contributed.get(client_id, 0.0)
                ),
                "weight score": _shown(_last(rows, "weight_score")),
                "accumulative influence": _shown(_last(rows, "accumulative_influence")),
                "weight": f"{sum(weights):.3f}" if weights else "",
                "marked": "malicious" if rows[-1].malicious else "",
            }
        )
    # Columns of which nothing is known are left out.
    columns = [name for name in (lines[0] if lines else ()) if any(line[name] for line in lines)]
    text = ["## Members", "", *wrap(_column_words(columns, run.scoring), 100), ""]
    text += [_line(columns), _line(["---"] * len(columns))]
    return text + [_line([line[name] for name in columns]) for line in lines]


def completeness_table(found: Completeness) -> list[str]:
    """Return a Markdown section: the verdict, and who lacks what, with its rounds as letters."""
    lines = ["", "## Completeness", "", *wrap(found.headline, 100)]
    shown = [member for member in found.members if member.has_gaps or member.not_admitted]
    if not shown:
        return lines
    columns = ["member", "asked", "answered", "late", "missing", "refused", "paused", "offline"]
    columns += ["took part in", "last seen"]
    lines += ["", _line(columns), _line(["---"] * len(columns))]
    for member in shown:
        counts = (getattr(member, name) for name in columns[1:8])
        share = "" if member.participation is None else f"{100 * member.participation:.0f} %"
        name = member.name.replace("|", "\\|")
        lines.append(_line([name, *map(str, counts), share, member.seen]))
    if others := len(found.members) - len(shown):
        lines += ["", f"Of the other {others} nothing is missing."]
    if drawn := [member for member in shown if member.rounds]:
        width = max(len(member.name) for member in drawn)
        meanings = ", ".join(f"{letter} {what}" for what, letter in LETTERS.items())
        lines += ["", *wrap(f"Each round: {meanings}, {NOT_ASKED} not asked.", 100), "", "```"]
        lines += [f"{member.name:{width}}  {member.rounds}" for member in drawn]
        lines += ["```"]
    return lines


def _column_words(columns: Sequence[str], scores: Scoring | None) -> str:
    """Return what the columns mean."""
    meanings = {
        "missing": "A reply is missing where none came, or an error of the client's app.",
        "contributed": "Contributed is by how much the member's updates lowered the validation "
        "loss over the run, by path attribution, in nats for a cross-entropy. It adds up over "
        "rounds and over members.",
        "weight score": "Weight score is the strategy's score (Omega) after the member's last "
        "round. It is no contribution, and nobody should be paid by it. "
        + (scores.words() if scores else ""),
        "accumulative influence": "Accumulative influence is the paper's INF.",
        "weight": "Weight is the sum of the member's aggregation weights over its rounds.",
    }
    return " ".join(meanings[column].strip() for column in columns if column in meanings)


def _ended(rows: Sequence[ClientRow]) -> bool:
    return rows[-1].status == "revoked"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _last(rows: Sequence[ClientRow], name: str) -> float | None:
    """Return the last value that there is in a column."""
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return float(values[-1]) if values else None


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
