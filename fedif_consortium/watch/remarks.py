"""Remarks for an operator: what is wrong or odd about a run, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedif_consortium.watch.state import Watched
from fedif_flower.run.held_out import MOST_CONTRADICTED
from fedif_flower.run.rows import Line
from fedif_flower.words import enumerated

MISSES = 3  # Missed requests in a row before a member is named: chance hardly explains so many.
SLOW = 3.0  # A round is slow if it lasts longer than this many usual rounds,
SHORT = 10.0  # and longer than this many seconds.
_GO_ON = 'go on with the same command and resume="auto"'


class _Miss(NamedTuple):
    """How a member missed rounds, and what to do about it."""

    deed: str
    advice: str


_SILENT = "If it is silent, ask whether its SuperNode runs and reaches this server."
_MISSES = {  # By a member's last status.
    "refused": _Miss("sent refused replies", "The reason is in its line; does it run this app?"),
    "failed": _Miss("sent errors of its app", "Ask its operator for the log of the SuperNode."),
    # Its guard may have refused what the server asked, and said why.
    "away": _Miss("sent no reply, or an error", f"The reason is in its line. {_SILENT}"),
    "late": _Miss("did not answer", _SILENT),
}


class Remark(NamedTuple):
    """Something that an operator should know about a run.

    Attributes
    ----------
    is_wrong : bool
        Whether something is wrong, not just odd.
    text : str
        What happened.
    advice : str
        What to do about it.
    """

    is_wrong: bool
    text: str
    advice: str


def remarks(run: Watched) -> list[Remark]:
    """Return all remarks on a run; what is wrong comes before what is just odd."""
    in_order = [
        *_about_end(run),
        *_about_rounds(run),
        *_about_held_out(run),
        *_about_waiting(run),
        *_about_members(run),
    ]
    return sorted(in_order, key=lambda remark: not remark.is_wrong)


def _about_end(run: Watched) -> Iterator[Remark]:
    """Yield remarks on a run that has ended, or that gives no sign of life any more."""
    completeness = run.summary.get("completeness") or {}
    if completeness.get("verdict") == "incomplete":
        yield Remark(
            is_wrong=True,
            text="The run is incomplete.",
            advice="Its report says who lacks what.",
        )
    if run.state == "failed" and not run.summary:
        yield Remark(
            is_wrong=True,
            text=f"The run ended with an error: {run.live.reason}",
            advice=f"Mend the cause, then {_GO_ON}.",
        )
    elif run.state == "stopped" and run.live.phase == "stopped":
        yield Remark(
            is_wrong=False,
            text="Somebody stopped the run.",
            advice=f"To finish it, {_GO_ON}.",
        )
    elif run.state == "stopped":
        minutes = (run.now - run.last_sign) / 60
        yield Remark(
            is_wrong=True,
            text=f"The run has given no sign of life for {minutes:,.0f} minutes.",
            advice=f"See whether its process and host still work; if not, {_GO_ON}.",
        )


def _about_rounds(run: Watched) -> Iterator[Remark]:
    """Yield remarks on rounds that left the model as it was, and on the last round."""
    if not run.rounds:
        return
    yield from _about_standing(
        run,
        [row for row in run.rounds if row["round_failed"]],
        "Rounds that left the model as it was",
        "One now and then does no harm. If they follow each other, look at the members.",
    )
    yield from _about_standing(
        run,
        [row for row in run.rounds if row.get("status") == "kept"],
        "Rounds in which nobody was given weight",
        "The model stayed as it was. If they follow each other, look at the rule's scores.",
    )
    last = run.rounds[-1]
    num_accepted = last["accepted"]
    num_asked = num_accepted + last["rejected"] + last["failed"]
    if 2 * num_accepted < num_asked:
        yield Remark(
            is_wrong=True,
            text=f"In round {last['round']} only {num_accepted} of {num_asked} replies counted.",
            advice="Look at the members below: the reason of each is said.",
        )
    losses = [last.get("test_loss"), last.get("validation_loss")]
    if any(loss is not None and not math.isfinite(loss) for loss in losses):
        yield Remark(
            is_wrong=True,
            text="The loss is not finite: the model has diverged.",
            advice="Go on from an earlier checkpoint with a lower learning-rate.",
        )


def _about_standing(
    run: Watched, rounds: Sequence[Line], words: str, advice: str
) -> Iterator[Remark]:
    """Yield a remark if there are ``rounds`` that left the model as it was, for one reason.

    It is wrong if the run's last round is one of them, else just odd.
    """
    if not rounds:
        return
    last = rounds[-1]
    yield Remark(
        is_wrong=last["round"] == run.last_round,
        text=f"{words}: {len(rounds)}; the last was round {last['round']}: {last['reason']}",
        advice=advice,
    )


def _about_held_out(run: Watched) -> Iterator[Remark]:
    """Yield a remark if the model contradicts so many held-out labels that no statement may pay."""
    contradicted = run.contradicted_share
    if contradicted is None:
        return
    corrected = run.corrected_share
    if contradicted - corrected > MOST_CONTRADICTED:
        yield Remark(
            is_wrong=True,
            text=f"The model is sure that {contradicted:.0%} of the held-out labels are others; "
            f"the loss is corrected for {corrected:.0%} of wrong ones.",
            advice="Look at the held-out labels (fedif validation check), and at members who may "
            "teach the model wrong ones. If it stays so, the run is not to be paid by.",
        )


def _about_waiting(run: Watched) -> Iterator[Remark]:
    """Yield a remark if the present round lasts much longer than usual: it names who is awaited."""
    usual = run.seconds_per_round
    is_training = run.is_running and run.live.phase == "training"
    if not is_training or not usual:
        return
    seconds = run.now - run.live.since
    if seconds > max(SLOW * usual, SHORT):
        lasted = (
            f"Round {run.live.round} has lasted {seconds:,.0f} s, {seconds / usual:.0f} times as "
            "long as usual."
        )
        waiting = [member.label for member in run.members if member.state == "training"]
        if waiting:
            yield Remark(
                is_wrong=False,
                text=f"{lasted} It waits for {enumerated(waiting)}.",
                advice="It goes on without them after pace.timeout. Do their hosts still work?",
            )
        else:
            # The phase is still "training" while the server screens and weighs the replies.
            yield Remark(
                is_wrong=False,
                text=f"{lasted} All whom it asked have answered.",
                advice="The server may be at work on the replies. If it stays so, see its log.",
            )


def _about_members(run: Watched) -> Iterator[Remark]:
    """Yield remarks on members that missed several rounds in a row, and on those offline."""
    missing = [member for member in run.members if member.misses >= MISSES]
    for status, miss in _MISSES.items():
        members = [member for member in missing if member.status[-1] == status]
        if members:
            most_misses = max(member.misses for member in members)
            names = enumerated(member.label for member in members)
            yield Remark(
                is_wrong=False,
                text=f"{names} {miss.deed}, {most_misses} rounds in a row.",
                advice=miss.advice,
            )
    others = [member for member in run.members if member not in missing]
    offline = [member.label for member in others if member.state == "offline"]
    if offline:
        yield Remark(
            is_wrong=False,
            text=f"Not connected when this round began: {enumerated(offline)}.",
            advice="Nothing, if it comes back soon: then it is asked again.",
        )
