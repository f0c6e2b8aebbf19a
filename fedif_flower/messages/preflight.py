"""What a member finds out about itself before a run, on its way to the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from flwr.app import ConfigRecord, RecordDict

from fedif_flower.messages.text import printable

QUESTION, RECORD = "config", "preflight"
TIME = "time"
CLOCK_SECONDS = 60.0  # Further off is told.

# What is checked, and what to do about each where it is not well.
ADVICE = {
    "node": "correct the node config or start the node again; its log says more",
    "app": "look at the app (fedif app show), then approve it (fedif app approve)",
    "data": "put the data where data-dir of the node config says; compare classes and shapes "
    "with the server's",
    "training": "compare the shapes and classes of the data with what the model takes",
    "disk": "free some space, or name another folder in the node config",
    "signing-key": "start the node with a policy, and with a key that its owner alone can read",
    "masking": "agree with the operator whether the run is masked, and set keeper-key",
    "clock": "let the host keep its time by a time server (NTP)",
    "certificate": "ask the operator for a certificate that is valid",
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
    told = {one.check: printable(f"{one.status}: {one.words}") for one in findings}
    return ConfigRecord({**told, TIME: clock})


def read_findings(content: RecordDict) -> tuple[list[Finding], float | None]:
    """Return what a member answered, its clock last; checks that nobody asked for are left out."""
    found: list[Finding] = []
    try:
        record = content.config_records[RECORD]
        for check in ADVICE:
            if check in record:
                status, _, words = str(record[check]).partition(": ")
                found.append(Finding(check, Status(status), printable(words)))
        clock = record.get(TIME)
    except Exception as error:  # a hostile answer must not stop the server
        return [Finding("node", Status.WARNING, printable(f"unreadable: {error!r}"))], None
    return found, clock if isinstance(clock, float) else None


def clock_finding(seconds: float) -> Finding:
    """Return what to say of a clock that is so far ahead of the server's."""
    far = abs(seconds) > CLOCK_SECONDS
    side = "ahead of" if seconds > 0 else "behind"
    words = f"{abs(seconds):.0f} s {side} the server's" if abs(seconds) >= 1 else "the server's"
    return Finding("clock", Status.WARNING if far else Status.OK, words)
