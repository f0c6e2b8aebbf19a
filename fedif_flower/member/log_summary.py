"""A node's log for readers: its messages as a table, and each day in a few lines of Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from fedif_flower.member.node_log import PRIVACY, NodeLine

_COLUMNS = ("time", "direction", "run", "app", "kind", "bytes", "digest", "decision", "reason")
_HASH, _DIGITS = 64, 12  # Of a hash, and of those that a table shows; the file has all.


def chosen(
    lines: Iterable[NodeLine],
    *,
    run: int | None = None,
    day: str = "",
    decision: str | None = None,
) -> list[NodeLine]:
    """Return the lines of one run, day (``2026-11-23``, UTC) and decision; by default all."""
    return [
        line
        for line in lines
        if (run is None or line.entry["run"] == run)
        and _day(line).startswith(day)
        and (decision is None or line.entry["decision"] == decision)
    ]


def table(lines: Sequence[NodeLine]) -> str:
    """Return the messages, a line each, in columns."""
    rows = [_COLUMNS, *(tuple(_cell(line, name) for name in _COLUMNS) for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in rows
    )


def summarize(lines: Iterable[NodeLine]) -> str:
    """Return each day in Markdown: its runs, what was refused and why, what noise has cost."""
    days = (_of_day(day, list(own)) for day, own in groupby(lines, _day))
    return "# What this node let in and out\n\nDays are in UTC.\n" + "".join(days)


def _of_day(day: str, lines: Sequence[NodeLine]) -> str:
    messages = [line for line in lines if line.entry["kind"] != PRIVACY]
    paid = [line.entry for line in lines if line.entry["kind"] == PRIVACY]
    text = f"\n## {day}\n\n"
    text += "| run | app | rounds answered | messages in | messages out | bytes out | refused |\n"
    text += "| --- | --- | ---: | ---: | ---: | ---: | ---: |\n"
    text += "".join(_of_run(messages, run) for run in _once(messages, "run"))
    reasons = Counter(
        (_direction(line), str(line.entry["reason"])) for line in messages if _refused(line)
    )
    text += "\nRefused:\n\n" if reasons else "\nNothing was refused.\n"
    for (way, reason), times in reasons.most_common():
        told = reason.replace("`", "'")  # An app may have chosen names in it.
        text += f"- {times} {way}: `{told}`\n"
    if paid:
        last: Any = paid[-1]
        text += (
            f"\nPrivacy budget: {len(paid)} replies left with noise; all {last['replies']} so far "
            f"are worth epsilon = {last['epsilon']:.4g} at delta = {last['delta']:g}.\n"
        )
    return text + f"\nThe day's last hash is `{lines[-1].hash}`.\n"


def _of_run(messages: Iterable[NodeLine], run: object) -> str:
    own = [line for line in messages if line.entry["run"] == run]
    came = [line for line in own if line.entry["direction"] == "in"]
    left = [line.entry for line in own if line.entry["direction"] == "out" and not _refused(line)]
    rounds = sum(str(entry["kind"]).partition(".")[0] == "train" for entry in left)
    apps = ", ".join(str(app) for app in _once(own, "app") if app)
    size = sum(int(str(entry["bytes"])) for entry in left)
    cells = (run, apps, rounds, len(came), len(left), f"{size:,}", sum(map(_refused, own)))
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"


def _once(lines: Iterable[NodeLine], name: str) -> list[object]:
    return list(dict.fromkeys(line.entry[name] for line in lines))


def _day(line: NodeLine) -> str:
    return str(line.entry["time"])[:10]


def _refused(line: NodeLine) -> bool:
    return line.entry["decision"] == "refused"


def _direction(line: NodeLine) -> str:
    return "on the way in" if line.entry["direction"] == "in" else "on the way out"


def _cell(line: NodeLine, name: str) -> str:
    entry = line.entry
    if name == "reason" and entry["kind"] == PRIVACY:
        epsilon, replies = float(str(entry["epsilon"])), entry["replies"]
        return f"epsilon {epsilon:.4g} at delta {entry['delta']} after {replies} replies"
    text = str(entry[name])
    if name in ("app", "digest"):
        return " ".join(word if len(word) < _HASH else word[:_DIGITS] for word in text.split())
    return text
