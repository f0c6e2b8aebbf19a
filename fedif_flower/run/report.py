"""The report of a run: its result in a few figures, a table on the terminal, a page for members."""

from __future__ import annotations

import math
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch
from rich.console import Console

from fedif_flower.errors import IncompleteRunError, TrainingFailedError
from fedif_flower.run.completeness import (
    LETTERS,
    NOT_ASKED,
    Completeness,
    MemberTurns,
    is_failed,
)
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.plots import plot_members, plot_progress
from fedif_flower.run.results import UNFINISHED, Run
from fedif_flower.run.rows import Line
from fedif_flower.server.summary import Scoring
from fedif_flower.storage import write_atomically
from fedif_flower.tables import ResultTable, decimals_for, print_line, shown_number
from fedif_flower.tasks.task import Metric

_UNKNOWN = "-"
_LARGEST = sys.float_info.max
MPS = "MPS"  # What a GPU of Apple is called, which has no name of its own.
# An evaluation has one of these at least.
_SEEN = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss")
Points = dict[int, list[tuple[int, float]]]  # Rounds and values, by client.


def write_report(
    run: Run, summary: Mapping[str, Any], title: str, *, is_finished: bool = True
) -> None:
    """Write pictures and ``report.md`` beside the tables of a run that is over.

    One that is not finished was ended by an error.
    """
    rounds = run.lines("rounds")
    lines = [f"# {title}", "", *_figures(summary).to_markdown(), ""]
    remainder = _remainder(summary)
    if remainder:
        lines += [*wrap(remainder, 100), ""]
    bound = bound_in_words(run.attributed[0])
    if bound:
        lines += [*wrap(bound, 100), ""]
    missing = _missing_attacks(run)
    if missing:
        lines += [*wrap(missing, 100), ""]
    for remark in summary.get("data_remarks", ()):
        lines += [*wrap(f"Data, {remark}.", 100), ""]
    if _has_losses(rounds):
        picture = plot_progress(rounds, run.folder, title)
        lines += [f"![{picture.stem} over rounds]({picture.name})", ""]
    lines += _member_pictures(run)
    members = run.table()
    words = column_words(members.heading, Scoring.from_record(summary.get("scoring")))
    lines += ["## Members", "", *wrap(words, 100), "", *members.to_markdown()]
    lines += _completeness(run.completeness, is_finished=is_finished)
    write_atomically(run.folder.report, "\n".join(lines) + "\n")


def _missing_attacks(run: Run) -> str:
    """Return how many replies of malicious clients were errors, in words; empty: none was."""
    statuses = [line["status"] for line in run.lines_of_complete_rounds() if line["malicious"]]
    num_failed = statuses.count("failed")
    if not num_failed:
        return ""
    times = "once" if num_failed == 1 else f"{num_failed} times"
    return (
        f"Malicious clients answered {times} by an error, which {run.folder.clients.path.name} "
        "names: there these figures are without their attack."
    )


def _has_losses(rounds: Iterable[Line]) -> bool:
    """Tell whether a model of the run was evaluated on held-out data."""
    for row in rounds:
        if row.get("test_loss") is not None or row.get("validation_loss") is not None:
            return True
    return False


def _member_pictures(run: Run) -> list[str]:
    """Draw members' contributions and scores, as far as the run has any; return the links."""
    members = {member.client_id: (member.label, member.malicious) for member in run.members}
    lines = []
    contributed = _contributed(run)
    for client_id in contributed:  # Rounds before this folder's first have lines elsewhere.
        members.setdefault(client_id, (str(client_id), False))
    if contributed:
        path = run.folder.pictures["attribution"]
        plot_members(
            contributed,
            members,
            run.last_round,
            path,
            ylabel="decrease of the validation loss",
            title="Contribution of each client over the rounds",
        )
        lines += [f"![contributions over rounds]({path.name})", ""]
    scores = _scores(run)
    if scores:
        path = run.folder.pictures["weight-scores"]
        plot_members(
            scores,
            members,
            run.last_round,
            path,
            ylabel="weight score \N{GREEK CAPITAL LETTER OMEGA}",
            title="Weight score of each client over the rounds",
        )
        lines += [f"![weight scores over rounds]({path.name})", ""]
    return lines


def _contributed(run: Run) -> Points:
    """Return what each client has contributed so far, by round; nothing before the first."""
    contributed: Points = {}
    _, lines = run.attributed
    for line in lines:
        points = contributed.setdefault(line["client_id"], [(0, 0.0)])
        before = points[-1][1]
        points.append((line["round"], before + line["contribution"]))
    return contributed


def _scores(run: Run) -> Points:
    """Return each client's weight scores by round."""
    scores: Points = {}
    for line in run.lines_of_complete_rounds():
        if line["weight_score"] is not None:
            points = scores.setdefault(line["client_id"], [])
            points.append((line["round"], line["weight_score"]))
    return scores


def _figures(summary: Mapping[str, Any], title: str = "") -> ResultTable:
    """Return the figures that a person looks at first, as far as they are known."""
    rows = []
    for name, figures in summary.get("metrics", {}).items():
        rows.append((f"test {name}", shown_number(figures["test"], ".4g")))
        rows.append((f"validation {name}", shown_number(figures["validation"], ".4g")))
    rows += [
        ("test accuracy", _percent(summary["test_accuracy"])),
        ("validation accuracy", _percent(summary["validation_accuracy"])),
        ("attack success rate", _percent(summary.get("attack_success"))),
    ]
    gain = summary.get("attribution")
    if gain:
        rows.append(("decrease of the validation loss", _decrease(gain)))
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
    known_rows = [row for row in rows if row[1] != _UNKNOWN]
    return ResultTable(title, ("figure", "value"), known_rows, num_labels=1)


def _decrease(gain: Mapping[str, float | None]) -> str:
    """Return in words by how much the validation loss fell, and by whom."""
    decrease = gain["decrease"]
    remainder = gain["remainder"]
    if decrease is None or remainder is None:
        return _UNKNOWN
    joint = "and"
    if remainder < 0:
        joint = "less"
    decimals = decimals_for([decrease, remainder])
    return (
        f"{decrease:.{decimals}f}: {gain['attributed']:.{decimals}f} by members, {joint} "
        f"{abs(remainder):.{decimals}f} by nobody"
    )


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
    record = RunFolder(run_dir).summary.read().get("completeness", {})
    if record.get("verdict") == "incomplete":
        raise IncompleteRunError(
            f"the run is incomplete: {' '.join(record['reasons'])} Results: {run_dir}"
        )


def print_summary(run_dir: Path, console: Console | None = None) -> None:
    """Print a completed run's table and where its report lies."""
    console = console or Console()
    run = Run(run_dir)
    _figures(run.summary, run.title).print(console)
    completeness = run.completeness
    style = "" if completeness.verdict == "complete" else "yellow"
    print_line(console, completeness.headline, style)
    print_line(console, f"Report: {run.folder.report}")


def troubles(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a completed run must not hide; nothing where all went well."""
    shown = []
    num_failed = summary.get("failed_rounds")
    if num_failed:
        words = str(num_failed)
        if summary["last_round_failed"]:
            words += ", the last among them"
        shown.append(("rounds that failed", words))
    num_kept = summary.get("kept_rounds")
    if num_kept:
        shown.append(("rounds that gave nobody weight", str(num_kept)))
    evaluated = summary.get("last_evaluated_round")
    if evaluated is not None and evaluated < summary["rounds"]:
        shown.append(("the last model that was evaluated", f"that of round {evaluated}"))
    return shown


def _remainder(summary: Mapping[str, Any]) -> str:
    """Return a paragraph about the decrease that nobody contributed; empty: there is none."""
    gain = summary.get("attribution")
    if gain is None or not gain["remainder"]:
        return ""
    remainder = gain["remainder"]
    way = "more" if remainder < 0 else "less"
    decimals = decimals_for([gain["decrease"], remainder])
    amount = f"{abs(remainder):.{decimals}f}"
    return (
        f"The members' contributions add up to {amount} {way} than the validation loss fell by. "
        "This remainder is nobody's: the error of measuring along a step at a few of its points, "
        "which grows with the step, and the effect of batch-norm statistics, of noise that a rule "
        "or a wrapper adds, of rounds without a finite loss, and of a server optimizer's momentum "
        "that faded."
    )


def bound_in_words(rounds: Iterable[Line]) -> str:
    """Return in how many rounds the one-step bound held, and how straight the steps were.

    Empty where no step was measured.

    Parameters
    ----------
    rounds : iterable of mapping
        Lines of ``attribution_rounds.csv``.
    """
    steps = [row for row in rounds if row.get("slope") is not None]
    if not steps:
        return ""
    num_held = sum(bool(row["bound_held"]) for row in steps)
    words = f"The one-step bound of the descent lemma held in {num_held} of {len(steps)} rounds"
    # What the slope foretold, in parts of what the loss did.
    ratios = [row["slope"] / -row["decrease"] for row in steps if row["decrease"]]
    if ratios:
        median = statistics.median(ratios)
        words += f"; the slope before a step foretold {median:.2g} times the change (median)"
    return f"{words}. The bound holds for any weights and speaks for none."


def _percent(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{100 * value:.1f} %"


def _completeness(completeness: Completeness, *, is_finished: bool) -> list[str]:
    """Return a Markdown section: the verdict, and who lacks what, with its rounds as letters."""
    headline = completeness.headline
    if not is_finished:
        until = f"an error ended the run after round {completeness.rounds}. Until then:"
        headline = f"{UNFINISHED.capitalize()}: {until} {' '.join(completeness.reasons)}"
    lines = ["", "## Completeness", "", *wrap(headline, 100)]
    shown = [
        member for member in completeness.members if member.has_gaps or member.count["not admitted"]
    ]
    if not shown:
        return lines
    lines += ["", *turns_table(shown).to_markdown()]
    num_others = len(completeness.members) - len(shown)
    if num_others:
        lines += ["", f"Of the other {num_others} nothing is missing."]
    lines += _drawn_rounds(shown)
    return lines


def turns_table(members: Sequence[MemberTurns]) -> ResultTable:
    """Return what became of members' requests, and when they could not be asked."""
    counted = ["asked", "answered", "late", "missing", "refused", "paused", "offline"]
    rare = ("revoked", "not admitted")
    counted += [name for name in rare if any(member.count[name] for member in members)]
    cells = []
    for member in members:
        share = ""
        if member.participation is not None:
            share = f"{100 * member.participation:.0f} %"
        counts = [str(member.count[name]) for name in counted]
        cells.append([member.name, *counts, share, member.seen])
    columns = ("member", *counted, "took part in", "last seen")
    return ResultTable("", columns, cells, num_labels=1)


def _drawn_rounds(members: Iterable[MemberTurns]) -> list[str]:
    """Return members' rounds as letters, with a legend; nothing where there are too many."""
    drawn = [member for member in members if member.rounds]
    if not drawn:
        return []
    meanings = [f"{letter} {status}" for status, letter in LETTERS.items()]
    legend = f"Each round: {', '.join(meanings)}, {NOT_ASKED} not asked."
    width = max(len(member.name) for member in drawn)
    letters = [f"{member.name:{width}}  {member.rounds}" for member in drawn]
    return ["", *wrap(legend, 100), "", "```", *letters, "```"]


def column_words(columns: Sequence[str], scoring: Scoring | None = None) -> str:
    """Return what the columns of members mean; with ``scoring`` also how scores come about."""
    score_words = ""
    if scoring:
        score_words = scoring.words()
    meanings = {
        "contribution": "Contribution is by how much the member's updates lowered the validation "
        "loss over the run, by path attribution, in nats for a cross-entropy. It adds up over "
        "rounds and over members.",
        "weight score": "Weight score is the strategy's score (Omega) after the member's last "
        f"round. It is no contribution, and nobody should be paid by it. {score_words}",
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
    attack_success = None
    if tested:
        attack_success = tested[-1].get("attack_success")
    accuracies = _column(tested, "test_accuracy")
    seconds = _column(clients, "train_seconds")
    return {
        "rounds": max((row["round"] for row in rounds), default=0),
        "last_evaluated_round": _last_evaluated(rounds),
        "test_accuracy": _last(accuracies),
        "test_accuracy_last_ten": _mean(of_last_ten(tested, "test_accuracy")),
        "test_accuracy_best": max(accuracies, default=None),
        "validation_accuracy": _last(_column(rounds, "validation_accuracy")),
        "attack_success": attack_success,
        **_metrics(trained, metrics, with_loss=not _column(rounds, "test_accuracy")),
        "malicious_weight_share": _malicious_weight_share(clients),
        "detection_auc": detection_auc(clients),
        "train_seconds_per_client": _mean(seconds),
        "train_seconds_total": sum(seconds),
        "aggregation_seconds_per_round": _mean(_column(trained, "aggregation_seconds")),
        "evaluations_per_round": _mean(_column(trained, "evaluations")),
        "accepted": sum(_column(rounds, "accepted")),
        "rejected": sum(_column(rounds, "rejected")),
        "failed": sum(_column(rounds, "failed")),
        "failed_rounds": sum(is_failed(row) for row in rounds),
        "kept_rounds": sum(row["status"] == "kept" for row in rounds),
        "last_round_failed": bool(rounds) and is_failed(rounds[-1]),
    }


def as_json_has_it(figures: Any) -> Any:
    """Return figures with ``None`` for each that is NaN or infinite: JSON has no word for those."""
    if isinstance(figures, Mapping):
        return {name: as_json_has_it(figure) for name, figure in figures.items()}
    if isinstance(figures, list | tuple):
        return [as_json_has_it(figure) for figure in figures]
    if isinstance(figures, float) and not math.isfinite(figures):
        return None
    return figures


def _last_evaluated(rounds: Sequence[Line]) -> int | None:
    """Return the last round whose model was evaluated, which figures are of; ``None``: none was."""
    evaluated = [row["round"] for row in rounds if any(row.get(name) is not None for name in _SEEN)]
    return max(evaluated, default=None)


def _malicious_weight_share(clients: Sequence[Line]) -> float | None:
    """Return the malicious clients' share of all weight; ``None``: there are none, or no weight."""
    malicious = [row for row in clients if row["malicious"]]
    if not malicious:
        return None
    weight = math.fsum(row["weight"] or 0.0 for row in clients)
    if not weight > 0:
        return None
    return math.fsum(row["weight"] or 0.0 for row in malicious) / weight


def of_last_ten(lines: Sequence[Line], name: str) -> list[Any]:
    """Return what a column has of the last ten rounds, not all of which need to be evaluated.

    The last round is the last one that has a value.
    """
    values = {}
    for line in lines:
        if line.get(name) not in (None, ""):
            values[int(line["round"])] = line[name]
    last = max(values, default=0)
    return [value for number, value in list(values.items())[-10:] if number > last - 10]


def _column(lines: Sequence[Line], name: str) -> list[Any]:
    """Return what there is in a column."""
    return [line[name] for line in lines if line.get(name) is not None]


def _metrics(
    trained: Sequence[Line], metrics: Sequence[Metric], *, with_loss: bool
) -> dict[str, Any]:
    """Return the figures of a task's metrics by name; nothing where accuracy says it all."""
    by_name = {}
    for metric in metrics:
        figures = _metric_figures(trained, metric.key, higher_is_better=metric.higher_is_better)
        if figures:
            by_name[metric.name] = figures
    if with_loss:
        figures = _metric_figures(trained, "loss", higher_is_better=False)
        if figures:
            by_name["loss"] = figures
    if not by_name:
        return {}
    return {"metrics": by_name}


def _metric_figures(trained: Sequence[Line], key: str, *, higher_is_better: bool) -> dict[str, Any]:
    """Return a metric's figures, ``None`` of a split without a value; nothing without any."""
    test = _column(trained, f"test_{key}")
    validation = _column(trained, f"validation_{key}")
    if not test and not validation:
        return {}
    return {
        "higher_is_better": higher_is_better,
        "test": _last(test),
        "test_last_ten": _mean(of_last_ten(trained, f"test_{key}")),
        "test_best": best_of(test, higher_is_better=higher_is_better),
        "validation": _last(validation),
    }


def best_of(values: Iterable[float], *, higher_is_better: bool) -> float | None:
    """Return the best value; ``None``: there is none. NaN, which a metric may be, is no value."""
    # Of NaN and another number, the one that comes first would be the largest and the smallest.
    numbers = [value for value in values if not math.isnan(value)]
    if higher_is_better:
        return max(numbers, default=None)
    return min(numbers, default=None)


def detection_auc(clients: Iterable[Line]) -> float | None:
    """Return how well low weight scores tell malicious clients from honest ones, in [0, 1].

    NaN, as the cosine with an update of zeros may be, is no score; an infinite one is the largest
    or the smallest.
    """
    latest: dict[int, Line] = {}
    for row in clients:
        if row["weight_score"] is not None and not math.isnan(row["weight_score"]):
            latest[row["client_id"]] = row
    malicious = [bool(row["malicious"]) for row in latest.values()]
    # scikit-learn takes finite numbers alone.
    scores = [min(max(row["weight_score"], -_LARGEST), _LARGEST) for row in latest.values()]
    if len(set(malicious)) < 2:
        return None
    # Imported here: it takes a second, which clients and command lines should not have to wait for.
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(malicious, [-score for score in scores]))


def describe_machine(device: str) -> dict[str, Any]:
    """Return versions and hardware, without which no figure of speed says anything."""
    gpu = None
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_name(0)
    elif torch.backends.mps.is_available():
        gpu = MPS
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
    if not values:
        return None
    return statistics.fmean(values)


def _last(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return values[-1]
