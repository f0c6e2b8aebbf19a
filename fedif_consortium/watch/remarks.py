"""What an operator should know about a run, in words, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedif_consortium.watch.state import Watched
from fedif_flower.messages.text import enumerated

MISSES = 3  # In a row: by chance it is hardly so.
SLOW = 3.0  # Times the usual round.
Remark = tuple[bool, str, str]  # Whether it is wrong, not just odd; what it is; what to do.
_GO_ON = 'go on with the same command and resume="auto"'
# By a member's last status: what was wrong, and what to do.
_AWAY = ("did not answer", "Ask its operator whether the SuperNode runs and reaches this server.")
_MISSED = {
    "refused": ("sent refused replies", "The reason is in its line; does it run this app?"),
    "failed": ("sent errors of its app", "Ask its operator for the log of the SuperNode."),
    "away": _AWAY,
    "late": _AWAY,
}


def remarks(run: Watched) -> list[Remark]:
    """Return what there is to know about a run; the worst comes first."""
    return sorted([*_of_end(run), *_of_rounds(run), *_of_members(run)], key=lambda one: not one[0])


def _of_end(run: Watched) -> Iterator[Remark]:
    if (run.summary.get("completeness") or {}).get("verdict") == "incomplete":
        yield True, "The run is incomplete.", "Its report says who lacks what."
    if run.state == "failed" and not run.summary:
        text = f"The run ended with an error: {run.live.reason}"
        yield True, text, f"Mend the cause, then {_GO_ON}."
    elif run.state == "stopped" and run.live.phase == "stopped":
        yield False, "Somebody stopped the run.", f"To finish it, {_GO_ON}."
    elif run.state == "stopped":
        minutes = (run.now - run.last_sign) / 60
        text = f"The run has given no sign of life for {minutes:,.0f} minutes."
        yield True, text, f"See whether its process and host still work; if not, {_GO_ON}."


def _of_rounds(run: Watched) -> Iterator[Remark]:
    if failed := [row for row in run.rounds if row["round_failed"]]:
        last = failed[-1]
        text = f"Rounds that left the model as it was: {len(failed)}; the last was round "
        text += f"{last['round']}: {last['reason']}"
        todo = "One now and then does no harm. If they follow each other, look at the members."
        yield last["round"] == run.last_round, text, todo
    if run.rounds:
        row = run.rounds[-1]
        accepted, asked = row["accepted"], row["accepted"] + row["rejected"] + row["failed"]
        if 2 * accepted < asked:
            text = f"In round {row['round']} only {accepted} of {asked} replies counted."
            yield True, text, "Look at the members below: the reason of each is said."
        losses = (row.get(name) or 0.0 for name in ("test_loss", "validation_loss"))
        if not all(map(math.isfinite, losses)):
            text = "The loss is not finite: the model has diverged."
            yield True, text, "Go on from an earlier checkpoint with a lower learning-rate."
    usual, seconds = run.seconds_per_round, run.now - run.live.since
    is_training = run.is_running and run.live.phase == "training"
    if is_training and usual and seconds > max(SLOW * usual, 10.0):
        waiting = enumerated(member.label for member in run.members if member.state == "training")
        text = f"Round {run.live.round} has lasted {seconds:,.0f} s, {seconds / usual:.0f} times "
        text += f"as long as usual. It waits for {waiting}."
        yield False, text, "It goes on without them after pace.timeout. Do their hosts still work?"


def _of_members(run: Watched) -> Iterator[Remark]:
    missed = [member for member in run.members if member.misses >= MISSES]
    for status, (said, todo) in _MISSED.items():
        if members := [member for member in missed if member.status[-1] == status]:
            worst = max(member.misses for member in members)
            names = enumerated(member.label for member in members)
            yield False, f"{names} {said}, {worst} rounds in a row.", todo
    if offline := [m.label for m in run.members if m.state == "offline" and m not in missed]:
        text = f"{enumerated(offline)} was not connected when this round began."
        yield False, text, "Nothing, if it comes back soon: then it is asked again."
