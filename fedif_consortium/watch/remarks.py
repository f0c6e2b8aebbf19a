"""What an operator should know about a run, in words, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedif_consortium.watch.state import Watched, WatchedMember

MOST_NAMES = 5
MISSES = 3  # In a row: by chance it is hardly so.
SLOW = 3.0  # Times the usual round.
_GO_ON = 'go on with the same command and resume="auto"'
# By a member's last status: what was wrong, and what to do.
_MISSED = {
    "refused": (
        "sent only replies that were refused",
        "The reason is in its line. Ask whether it runs this version of the app.",
    ),
    "failed": (
        "sent only errors of its app",
        "Ask its operator for the log of the SuperNode: data or memory are missing there.",
    ),
    "away": (
        "did not answer, however often it was asked",
        "Ask its operator whether the SuperNode runs and reaches this server. It takes part "
        "again as soon as it answers.",
    ),
}


class Remark(NamedTuple):
    """Something to know, and what to do; ``bad`` says that it is wrong, not just odd."""

    bad: bool
    text: str
    todo: str


def remarks(run: Watched) -> list[Remark]:
    """Return what there is to know about a run; the worst comes first."""
    found = [*_ended(run), *_rounds(run), *_members(run)]
    return sorted(found, key=lambda remark: not remark.bad)


def _ended(run: Watched) -> Iterator[Remark]:
    if run.summary:
        if run.state == "failed":
            text = "The last round failed: the model is an older one."
            yield Remark(True, text, "Read in the log why replies did not count, and run it again.")
        if (run.summary.get("completeness") or {}).get("verdict") == "incomplete":
            yield Remark(True, "The run is incomplete.", "Its report says who lacks what.")
    elif run.state == "failed" and run.live:
        text = f"The run ended with an error: {run.live.reason}"
        yield Remark(True, text, f"Mend the cause, then {_GO_ON}.")
    elif run.state == "stopped" and run.live and run.live.phase == "stopped":
        yield Remark(False, "Somebody stopped the run.", f"To finish it, {_GO_ON}.")
    elif run.state == "stopped":
        minutes = (run.now - run.last_sign) / 60
        yield Remark(
            True,
            f"The run has given no sign of life for {minutes:,.0f} minutes.",
            f"See whether its process and host still work; if not, {_GO_ON}. Of a folder that was "
            "copied while the run went on, look at the original.",
        )


def _rounds(run: Watched) -> Iterator[Remark]:
    if failed := [row for row in run.rounds if row["round_failed"]]:
        last = failed[-1]
        yield Remark(
            last["round"] == run.last_round,
            f"Rounds that left the model as it was: {len(failed)}; the last was round "
            f"{last['round']}: {last['reason']}",
            "A round now and then does no harm. If they follow each other, look at the members "
            "below; the run ends by itself after max-failed-rounds in a row.",
        )
    if run.rounds:
        row = run.rounds[-1]
        accepted, asked = row["accepted"], row["accepted"] + row["rejected"] + row["failed"]
        if 2 * accepted < asked:
            text = f"In round {row['round']} only {accepted} of {asked} replies counted."
            yield Remark(True, text, "Look at the members below: the reason of each is said.")
        losses = (row.get(name) or 0.0 for name in ("test_loss", "validation_loss"))
        if not all(map(math.isfinite, losses)):
            yield Remark(
                True,
                "The loss is not finite: the model has diverged.",
                "Go on from an earlier checkpoint with a lower learning-rate, or update-clipping.",
            )
    live, usual = run.training, run.seconds_per_round
    if live and usual and live.phase == "training":
        seconds = run.now - live.since
        if seconds > max(SLOW * usual, 10.0):
            waiting = [member for member in run.members if member.state == "training"]
            yield Remark(
                False,
                f"Round {live.round} has lasted {seconds:,.0f} s, {seconds / usual:.0f} times as "
                f"long as usual. It waits for {_names(waiting)}.",
                "It goes on without them after pace.timeout. Ask whether their hosts still work.",
            )


def _members(run: Watched) -> Iterator[Remark]:
    missed = [member for member in run.members if member.misses >= MISSES]
    for status, (said, todo) in _MISSED.items():
        same = (status, "late") if status == "away" else (status,)
        if members := [member for member in missed if member.last_status in same]:
            worst = max(member.misses for member in members)
            yield Remark(False, f"{_names(members)} {said}, {worst} rounds in a row.", todo)
    if offline := [m for m in run.members if m.state == "offline" and m not in missed]:
        yield Remark(
            False,
            f"{_names(offline)} was not connected when this round began.",
            "Nothing, if it comes back soon: it is asked again as soon as it is there.",
        )


def _names(members: Sequence[WatchedMember]) -> str:
    """Return how members are called, or some of them and how many there are."""
    shown = [member.label for member in members[:MOST_NAMES]]
    if more := len(members) - len(shown):
        shown.append(f"{more:,} more")
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
