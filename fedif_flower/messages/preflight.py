"""What a member finds out about itself before a run, on its way to the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from flwr.app import ConfigRecord, RecordDict

from fedif_flower.messages.records import records_of
from fedif_flower.messages.text import printable

QUESTION = "config"  # The record of the server's question.
RECORD = "preflight"  # And of a member's answer.
TIME = "time"
# A clock that is further off gets a warning, before a SuperLink refuses the node for it (see
# MOST_AHEAD of runtime/supernode.py).
CLOCK_AHEAD = 2.0
CLOCK_BEHIND = 60.0

# What is checked, and what to do where it is not well.
ADVICE = {
    "node": "correct the node config or start the node again; its log says more",
    "app": "look at the app (fedif app show), then approve it (fedif app approve)",
    "data": "put the data where data-dir of the node config says; compare classes and shapes "
    "with the server's",
    "training": "compare the shapes and classes of the data with what the model takes",
    "disk": "free some space, or name another folder in the node config",
    "signing-key": "start the node with a policy, and with a key that its owner alone can read",
    "masking": "agree with the operator whether the run is masked, and set keeper-key",
    "clock": "let this host and the server keep their time by a time server (NTP)",
    "certificate": "see whether this host's date is right; if so, ask the operator for a valid one",
}


class Status(StrEnum):
    """What a check came to: the member cannot take part where one has failed."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """What one check came to, in words."""

    check: str
    status: Status
    words: str


def to_record(findings: Iterable[Finding], clock: float) -> ConfigRecord:
    """Return what a member answers: its findings, and what its clock says (seconds since 1970)."""
    record = ConfigRecord()
    for finding in findings:
        record[finding.check] = printable(f"{finding.status}: {finding.words}")
    record[TIME] = clock
    return record


def read_findings(content: RecordDict) -> tuple[list[Finding], float | None]:
    """Return what a member answered, its clock last; checks that nobody asked for are left out."""
    findings: list[Finding] = []
    try:
        record = records_of(content, ConfigRecord)[RECORD]
        for check in ADVICE:
            if check in record:
                status, _, words = str(record[check]).partition(": ")
                findings.append(Finding(check, Status(status), printable(words)))
        clock = record.get(TIME)
    except Exception as error:  # a hostile answer must not stop the server
        return [Finding("node", Status.WARNING, printable(f"unreadable: {error!r}"))], None
    if not isinstance(clock, float):
        return findings, None
    return findings, clock


def seconds_ahead(member: tuple[float, float], server: tuple[float, float]) -> float:
    """Return by how much a member's clock is ahead of the server's; negative: behind it.

    Each clock was read at some time between its two, so 0 is right wherever they meet.

    Parameters
    ----------
    member, server : tuple of float
        Between which times a clock was read, by itself or by the other one, in seconds since 1970.
    """
    if member[0] > server[1]:
        return member[0] - server[1]
    if member[1] < server[0]:
        return member[1] - server[0]
    return 0.0


def clock_finding(seconds: float) -> Finding:
    """Return what to say of a clock that is so many seconds ahead of the server's."""
    if abs(seconds) < 1:
        return Finding("clock", Status.OK, "the server's")
    status = Status.OK
    if seconds > CLOCK_AHEAD or -seconds > CLOCK_BEHIND:
        status = Status.WARNING
    if seconds > 0:
        return Finding("clock", status, f"{seconds:.0f} s ahead of the server's")
    return Finding("clock", status, f"{-seconds:.0f} s behind the server's")
