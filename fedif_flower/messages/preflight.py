"""Messages of the preflight: each member checks itself before a run, and tells the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from flwr.app import ConfigRecord, RecordDict

from fedif_flower.messages.records import records_of
from fedif_flower.messages.text import printable

QUESTION = "config"  # The name of the record in the server's question.
RECORD = "preflight"  # The name of the record in a member's answer.
TIME = "time"  # The key of the member's clock in its answer.
# Seconds by which a clock may be ahead or behind without a warning. The limits are narrower than
# those of a SuperLink, which refuses the node (see MOST_AHEAD of runtime/supernode.py).
CLOCK_AHEAD = 2.0
CLOCK_BEHIND = 60.0

# The checks, and what to do about one that fails or warns.
ADVICE = {
    "node": "correct the node config or start the node again; its log says more",
    "app": "look at the app (fedif app show), then approve it (fedif app approve)",
    "data": "put the data where data-dir of the node config says; compare classes and shapes "
    "with the server's",
    "training": "compare the shapes and classes of the data with what the model takes",
    "disk": "free some space, or name another folder in the node config",
    "signing-key": "start the node with a policy, and with a key that its owner alone can read",
    "masking": "agree with the operator whether the run is masked; set keeper-key and signing-key",
    "clock": "let this host and the server keep their time by a time server (NTP)",
    "certificate": "see whether this host's date is right; if so, ask the operator for a valid one",
}


class Status(StrEnum):
    """The result of a check; a member with a failed check cannot take part."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """The result of one check, with words for people."""

    check: str
    status: Status
    words: str


def to_record(findings: Iterable[Finding], clock: float) -> ConfigRecord:
    """Return a member's answer: its findings, and its clock's time in seconds since 1970."""
    record = ConfigRecord()
    for finding in findings:
        record[finding.check] = printable(f"{finding.status}: {finding.words}")
    record[TIME] = clock
    return record


def read_findings(content: RecordDict) -> tuple[list[Finding], float | None]:
    """Return a member's findings and its clock's time, ``None`` if it sent no time.

    Findings of checks that are not in ``ADVICE`` are left out. An answer that cannot be read
    becomes a finding itself.
    """
    findings: list[Finding] = []
    try:
        record = records_of(content, ConfigRecord)[RECORD]
        for check in ADVICE:
            if check in record:
                status, _, words = str(record[check]).partition(": ")
                findings.append(Finding(check, Status(status), printable(words)))
        clock = record.get(TIME)
    except Exception as error:  # A hostile answer must not stop the server.
        return [Finding("node", Status.WARNING, printable(f"unreadable: {error!r}"))], None
    if not isinstance(clock, float):
        return findings, None
    return findings, clock


def seconds_ahead(member: tuple[float, float], server: tuple[float, float]) -> float:
    """Return how far a member's clock is ahead of the server's, in seconds; negative if behind.

    What each clock showed at one common moment is known only as an interval. The result is the gap
    between the two intervals, and 0 if they overlap.

    Parameters
    ----------
    member, server : tuple of float
        Earliest and latest time that the clock may have shown, in seconds since 1970. Both are
        equal if the time is known exactly.
    """
    if member[0] > server[1]:
        return member[0] - server[1]
    if member[1] < server[0]:
        return member[1] - server[0]
    return 0.0


def clock_finding(seconds: float) -> Finding:
    """Return the finding on a clock that is ``seconds`` ahead of the server's (behind if < 0)."""
    if abs(seconds) < 1:
        return Finding("clock", Status.OK, "in step with the server's")
    status = Status.OK
    if seconds > CLOCK_AHEAD or -seconds > CLOCK_BEHIND:
        status = Status.WARNING
    if seconds > 0:
        return Finding("clock", status, f"{seconds:.0f} s ahead of the server's")
    return Finding("clock", status, f"{-seconds:.0f} s behind the server's")
