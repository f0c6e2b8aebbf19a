"""What an operator should know about a run, in words, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedif_consortium.watch.state import Watched, WatchedMember

MOST_NAMES = 5
MISSES = 3  # In a row: by chance it is hardly so.
FEWEST_ROUNDS = 5  # Before a run is judged by its curve.
DROP = 0.05  # Of the accuracy, below the best so far.
SLOW = 3.0  # Times the usual round.


@dataclass(frozen=True)
class Remark:
    """Something to know, and what to do."""

    level: Literal["bad", "look"]
    text: str
    todo: str


def remarks(run: Watched) -> list[Remark]:
    """Return what there is to know about a run; the worst comes first."""
    found = [remark for look in _LOOKS for remark in look(run)]
    return sorted(found, key=lambda remark: remark.level != "bad")


def _ended(run: Watched) -> Iterator[Remark]:
    go_on = 'go on with the same command and resume="auto"'
    if not run.last_sign:
        yield Remark(
            "look",
            "The run has not written anything yet.",
            "It prepares its data, or waits for its members; its log says for whom.",
        )
    if run.records.summary:
        if run.state == "failed":
            yield Remark(
                "bad",
                "The run came to its end, but its last round failed: the model is an older one.",
                "Read in the log why replies did not count, and run it again.",
            )
        found = run.records.summary.get("completeness")
        if isinstance(found, Mapping) and found.get("verdict") == "incomplete":
            yield Remark("bad", "The run is incomplete.", "Its report says who lacks what.")
    elif run.state == "failed":
        reason = run.live.reason if run.live else ""
        yield Remark(
            "bad", f"The run ended with an error: {reason}", f"Mend the cause, then {go_on}."
        )
    elif run.state == "stopped" and run.live and run.live.phase == "stopped":
        yield Remark("look", "Somebody stopped the run.", f"To finish it, {go_on}.")
    elif run.state == "stopped":
        minutes = (run.now - run.last_sign) / 60
        yield Remark(
            "bad",
            f"The run has given no sign of life for {minutes:,.0f} minutes.",
            f"See whether its process and host still work; if not, {go_on}. Of a folder that was "
            "copied while the run went on, look at the original.",
        )


def _rounds(run: Watched) -> Iterator[Remark]:
    failed = [point for point in run.points if point.round_failed]
    if failed:
        last = failed[-1]
        yield Remark(
            "bad" if last.round == run.last_round else "look",
            f"{_count(len(failed), 'round')} left the model as it was; the last was round "
            f"{last.round}: {last.reason}",
            "A round now and then does no harm. If they follow each other, look at the members "
            "below; the run ends by itself after max-failed-rounds in a row.",
        )
    last_point = run.points[-1] if run.points else None
    if last_point and 2 * last_point.accepted < last_point.asked:
        yield Remark(
            "bad",
            f"In round {last_point.round} only {last_point.accepted} of {last_point.asked} replies "
            "counted.",
            "Look at the members below: the reason of each is said.",
        )


def _slow(run: Watched) -> Iterator[Remark]:
    live, usual = run.live, run.seconds_per_round
    if not (run.is_running and live and usual and live.phase == "training"):
        return
    seconds = run.now - live.since
    if seconds > max(SLOW * usual, 10.0):
        waiting = [member for member in run.members if member.state == "training"]
        yield Remark(
            "look",
            f"Round {live.round} has lasted {seconds:,.0f} s, {seconds / usual:.0f} times as long "
            f"as usual. It waits for {_names(waiting)}.",
            "It goes on without them after round-timeout. Ask whether their hosts still work; "
            "round-quorum lets later runs wait for nobody.",
        )


def _model(run: Watched) -> Iterator[Remark]:
    accuracy = run.series("test_accuracy")
    if len(accuracy) > FEWEST_ROUNDS:
        best = max(accuracy, key=lambda point: point[1])
        fall = best[1] - accuracy[-1][1]
        if fall > DROP:
            yield Remark(
                "look",
                f"The test accuracy is {100 * fall:.1f} points below that of round {best[0]}.",
                "Look at who contributed less than nothing; update-clipping and another strategy "
                "bound what a single member can do.",
            )
    for name in ("test_loss", "validation_loss"):
        losses = run.series(name)
        if losses and not math.isfinite(losses[-1][1]):
            yield Remark(
                "bad",
                f"The {name.replace('_', ' ')} is not finite: the model has diverged.",
                "Stop the run and go on from an earlier checkpoint with a lower learning-rate, or "
                "with update-clipping.",
            )
            return


def _members(run: Watched) -> Iterator[Remark]:
    missed = [m for m in run.members if m.totals.misses >= MISSES]
    silent = [m for m in missed if m.totals.last_status in ("away", "late")]
    offline = [m for m in run.members if m.state == "offline" and m not in silent]
    for members, said, todo in (
        (
            [m for m in missed if m.totals.last_status == "refused"],
            "sent only replies that were refused",
            "The reason is in its line. Ask whether it runs this version of the app; if it does, "
            "do not pay it before that is explained.",
        ),
        (
            [m for m in missed if m.totals.last_status == "failed"],
            "sent only errors of its app",
            "Ask its operator for the log of the SuperNode: data or memory are missing there.",
        ),
        (
            silent,
            "did not answer, however often it was asked",
            "Ask its operator whether the SuperNode runs and reaches this server. It takes part "
            "again as soon as it answers.",
        ),
        (
            offline,
            "was not connected when this round began",
            "Nothing, if it comes back soon: it is asked again as soon as it is there.",
        ),
    ):
        if members:
            worst = max(member.totals.misses for member in members)
            rounds = f", {worst} rounds in a row" if worst >= MISSES else ""
            yield Remark("look", f"{_names(members)} {said}{rounds}.", todo)


_LOOKS: Sequence[Callable[[Watched], Iterator[Remark]]] = (_ended, _rounds, _model, _slow, _members)


def _names(members: Sequence[WatchedMember]) -> str:
    """Return how members are called, or some of them and how many there are."""
    shown = [member.label for member in members[:MOST_NAMES]]
    if more := len(members) - len(shown):
        return f"{', '.join(shown)} and {_count(more, 'other')}"
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
