"""The report of a run: the page ``report.md``, and the tables that commands print."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

from fedif_flower.run.completeness import (
    LETTERS,
    NOT_ASKED,
    Completeness,
    MemberTurns,
    whole_percent,
)
from fedif_flower.run.figures import troubles
from fedif_flower.run.plots import plot_members, plot_progress
from fedif_flower.run.results import UNFINISHED, Run
from fedif_flower.run.rows import Line
from fedif_flower.server.summary import Scoring
from fedif_flower.storage import write_atomically
from fedif_flower.tables import ResultTable, decimals_for, shown_number

_UNKNOWN = "-"
Points = dict[int, list[tuple[int, float]]]  # Pairs of round and value, by client id.


def write_report(run: Run, summary: Mapping[str, Any], title: str, *, is_finished: bool) -> None:
    """Write pictures and ``report.md`` beside the tables of a run that is over.

    Parameters
    ----------
    run : Run
        The run.
    summary : mapping
        Its figures, as ``summary.json`` holds them.
    title : str
        The title of the report.
    is_finished : bool
        Whether the run came to its end; ``False``: an error ended it.
    """
    rounds = run.lines("rounds")
    lines = [f"# {title}", "", *figures_table(summary).to_markdown(), ""]
    lines += _paragraph(_remainder(summary))
    lines += _paragraph(bound_in_words(run.attributed.rounds))
    lines += _paragraph(_missing_attacks(run))
    for remark in summary.get("data_remarks", ()):
        lines += _paragraph(f"Data, {remark}.")
    if _has_losses(rounds):
        picture = plot_progress(rounds, run.folder, title)
        lines += [f"![{picture.stem} over rounds]({picture.name})", ""]
    lines += _member_pictures(run)
    members = run.table()
    words = column_words(members.heading, Scoring.from_record(summary.get("scoring")))
    lines += ["## Members", "", *wrap(words, 100), "", *members.to_markdown()]
    lines += _completeness_section(run.completeness, is_finished=is_finished)
    write_atomically(run.folder.report, "\n".join(lines) + "\n")


def _paragraph(text: str) -> list[str]:
    """Return the lines of a paragraph and an empty line behind it; no lines for an empty text."""
    if not text:
        return []
    return [*wrap(text, 100), ""]


def _missing_attacks(run: Run) -> str:
    """Return a sentence about malicious clients that answered by an error; empty: none did.

    In those rounds their attack did not take place.
    """
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
    """Whether a model of the run was evaluated on held-out data."""
    for row in rounds:
        if row.get("test_loss") is not None or row.get("validation_loss") is not None:
            return True
    return False


def _member_pictures(run: Run) -> list[str]:
    """Draw members' contributions and weight scores if there are any; return links in Markdown."""
    members = {member.client_id: (member.label, member.malicious) for member in run.members}
    lines = []
    contributed = _contributed(run)
    # Contributions may be of earlier rounds than the lines of ``clients.csv`` in this folder.
    for client_id in contributed:
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
    """Return the sum of each client's contributions up to each round; it begins at (0, 0)."""
    contributed: Points = {}
    for line in run.attributed.parts:
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


def figures_table(summary: Mapping[str, Any], title: str = "") -> ResultTable:
    """Return a table of the figures that a person looks at first, without unknown ones."""
    rows = []
    for name, figures in summary.get("metrics", {}).items():
        rows.append((f"test {name}", _last_of_metric(figures, "test")))
        rows.append((f"validation {name}", _last_of_metric(figures, "validation")))
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
    """Return in words by how much the validation loss fell, and how much of it is members'."""
    decrease = gain["decrease"]
    remainder = gain["remainder"]
    if decrease is None or remainder is None:
        return _UNKNOWN
    sign = "+"
    if remainder < 0:
        sign = "-"
    decimals = decimals_for([decrease, remainder])
    return (
        f"{decrease:.{decimals}f} = {gain['attributed']:.{decimals}f} contributed by members "
        f"{sign} {abs(remainder):.{decimals}f} remainder"
    )


def _remainder(summary: Mapping[str, Any]) -> str:
    """Return a paragraph about the part of the decrease that is nobody's; empty: there is none."""
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
    """Return in words how often the descent lemma's bound held, and how well slopes foretold steps.

    The text is empty if no step was measured.

    Parameters
    ----------
    rounds : iterable of mapping
        The lines of ``attribution_rounds.csv``.
    """
    steps = [row for row in rounds if row.get("slope") is not None]
    if not steps:
        return ""
    num_held = sum(bool(row["bound_held"]) for row in steps)
    words = f"The one-step bound of the descent lemma held in {num_held} of {len(steps)} rounds"
    # For each step, the change that the slope foretold over the change that came.
    ratios = [row["slope"] / -row["decrease"] for row in steps if row["decrease"]]
    if ratios:
        median = statistics.median(ratios)
        words += f"; the slope before a step foretold {median:.2g} times the change (median)"
    return f"{words}. The bound holds for any weights and speaks for none."


def _last_of_metric(figures: Mapping[str, Any], split: str) -> str:
    """Return the last value of a task's metric on a split as text."""
    if split in figures.get("not_finite", ()):
        return "not a finite number"
    return shown_number(figures[split], ".4g")


def _percent(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{100 * value:.1f} %"


def _completeness_section(completeness: Completeness, *, is_finished: bool) -> list[str]:
    """Return a Markdown section: the verdict, and a table of members that have missed turns."""
    headline = completeness.headline
    if not is_finished:
        end = f"an error ended the run after round {completeness.rounds}."
        headline = f"{UNFINISHED.capitalize()}: {end} {' '.join(completeness.reasons)}"
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
    lines += _letters_section(shown)
    return lines


def turns_table(members: Sequence[MemberTurns]) -> ResultTable:
    """Return a table of what became of members' requests, and of their absences."""
    counted = ["asked", "answered", "late", "missing", "refused", "paused", "offline"]
    # These two are rare: they have a column only if a member has any.
    counted += [name for name in ("revoked", "not admitted") if _has_any(members, name)]
    cells = []
    for member in members:
        participation = ""
        if member.participation is not None:
            participation = whole_percent(member.participation)
        counts = [str(member.count[name]) for name in counted]
        cells.append([member.name, *counts, participation, member.seen])
    columns = ("member", *counted, "took part in", "last seen")
    return ResultTable("", columns, cells, num_labels=1)


def _has_any(members: Iterable[MemberTurns], name: str) -> bool:
    """Whether any of the members has a count under a name, such as ``revoked``."""
    return any(member.count[name] for member in members)


def _letters_section(members: Iterable[MemberTurns]) -> list[str]:
    """Return members' rounds as letters, with a legend; no lines if there are too many letters."""
    drawn = [member for member in members if member.rounds]
    if not drawn:
        return []
    meanings = [f"{letter} {status}" for status, letter in LETTERS.items()]
    legend = f"Each round: {', '.join(meanings)}, {NOT_ASKED} not asked."
    width = max(len(member.name) for member in drawn)
    letters = [f"{member.name:{width}}  {member.rounds}" for member in drawn]
    return ["", *wrap(legend, 100), "", "```", *letters, "```"]


def column_words(columns: Sequence[str], scoring: Scoring | None = None) -> str:
    """Return what the columns of a members' table mean; with ``scoring``, how scores come about."""
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
        "no reply came, or an error of its node; failed: an error of the client's app.",
    }
    return " ".join(meanings[column].strip() for column in columns if column in meanings)
