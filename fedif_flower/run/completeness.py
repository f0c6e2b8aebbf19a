r"""How complete a run is: each member's replies and absences, and a verdict on the run.

A member's participation is the share of its turns in which it gave a usable reply:

.. math:: p_i = \frac{\text{usable replies}}{\text{asked} + \sum_{t \in A_i} a_t},

with :math:`A_i` the rounds in which member i could not be asked, because it was offline or paused
after errors, and :math:`a_t` the share of the online members that round t asked: 1 if it asked all.
A late reply that counted is usable.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

from fedif_flower.messages.client_node import called
from fedif_flower.run.rows import Line
from fedif_flower.strategies.config import ALWAYS
from fedif_flower.words import listed

Verdict = Literal["complete", "complete with gaps", "incomplete"]
# What became of a request to a member. It is open if the run ended before the member answered, and
# the member could still have answered: it had answered other requests about as late.
Outcome = Literal["answered", "late", "missing", "refused", "open"]
Absence = Literal["offline", "revoked", "paused", "not admitted"]
# In a report, a member's rounds are a row of letters: one for each outcome or absence.
LETTERS: Mapping[str, str] = {
    "answered": "+",
    "late": "~",
    "missing": "-",
    "refused": "x",
    "open": ">",
    "offline": "o",
    "revoked": "r",
    "paused": "p",
    "not admitted": "q",
}
NOT_ASKED = "."
_MOST_NAMED = 8  # Members that a sentence names.
_MOST_SILENT = 100  # Members that the summary names.
_MOST_LETTERS = 20_000  # Members times rounds: reports with more have no rows of letters.
_GONE = ("offline", "revoked")
# If a member was asked twice in one round, the better outcome counts.
_RANK: Mapping[Outcome, int] = {"missing": 0, "open": 0, "refused": 1, "late": 2, "answered": 2}
LEAST_PARTICIPATION = 0.5


@dataclass(frozen=True)
class MemberTurns:
    """A member over the run: what became of its requests, and when it could not be asked.

    Attributes
    ----------
    client_id, partition_id : int
        Who the member is.
    name : str
        What reports call it.
    count : mapping of str to int
        The number of rounds by outcome or absence (the keys of :data:`LETTERS`), and under
        ``asked`` the number of requests that are not open.
    participation : float, optional
        In [0, 1]; ``None``: the member never had a turn.
    revoked_in : int, optional
        The round in which the server noticed that the member's registration had ended; ``None``: it
        had not ended.
    seen : str
        When the member was seen last, in words; empty: it was there to the end.
    rounds : str
        A letter for each round (:data:`LETTERS`); empty if members and rounds are too many.
    """

    client_id: int
    partition_id: int
    name: str
    count: Mapping[str, int]
    participation: float | None
    revoked_in: int | None
    seen: str
    rounds: str

    @property
    def usable(self) -> int:
        """The number of replies that counted."""
        return self.count["answered"] + self.count["late"]

    @property
    def is_silent(self) -> bool:
        """Whether it was asked, and never gave a usable reply."""
        return self.count["asked"] > 0 and not self.usable

    @property
    def has_gaps(self) -> bool:
        """Whether it gave no usable reply to a request, or could not be asked in some round."""
        gaps = ("missing", "refused", "offline", "paused")
        return self.revoked_in is not None or any(self.count[gap] for gap in gaps)

    @property
    def description(self) -> str:
        """Its name, its participation and, if it is gone, when it was seen last, in words."""
        words = [self._share()]
        if self.revoked_in is not None:
            words.append("registration ended")
        if self.seen:
            words.append(f"last seen: {self.seen}")
        return f"{self.name} ({'; '.join(words)})"

    def _share(self) -> str:
        """Return the participation in words."""
        if self.is_silent:
            return "never answered"
        if self.participation is None:
            return "never asked"
        return whole_percent(self.participation)


@dataclass(frozen=True)
class Completeness:
    """How complete a run is.

    Attributes
    ----------
    verdict : str
        ``"complete"``, ``"complete with gaps"`` or ``"incomplete"``.
    reasons : tuple of str
        The sentences that the verdict rests on.
    members : tuple of MemberTurns
        All members, those with the least participation first.
    rounds : int
        The number of the last round.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    members: tuple[MemberTurns, ...]
    rounds: int

    @property
    def headline(self) -> str:
        """The verdict and its reasons, in words."""
        return f"{self.verdict[0].upper()}{self.verdict[1:]}: {' '.join(self.reasons)}"

    def to_record(self) -> dict[str, object]:
        """Return verdict, reasons and sums for ``summary.json``."""
        record: dict[str, object] = {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "members": len(self.members),
        }
        for name in ("asked", "answered", "late", "missing", "refused"):
            record[name] = sum(member.count[name] for member in self.members)
        silent = [member.name for member in self.members if member.is_silent]
        record["never_answered"] = silent[:_MOST_SILENT]
        return record


@dataclass
class _Recorded:
    """What the tables say of a member: its requests by round, and when it came and left."""

    client_id: int
    partition_id: int = -1
    requests: dict[int, Outcome] = field(default_factory=dict)
    changes: list[Line] = field(default_factory=list)
    # The round in which its last request failed because its registration had ended, if it did so.
    revoked_by_reply: int | None = None
    delay: int = 0  # By how many rounds the latest reply that counted was late.

    def add(self, reply: Line) -> None:
        """Take in a line of ``clients.csv``: what became of a request to this member."""
        self.partition_id = reply["partition_id"]
        began = reply["asked_in"] or reply["round"]
        outcome = _outcome(reply)
        self.revoked_by_reply = None
        if reply["status"] == "revoked":
            self.revoked_by_reply = reply["round"]
        if outcome == "late":
            self.delay = max(self.delay, reply["round"] - began)
        before = self.requests.get(began)
        if before is None or _RANK[outcome] > _RANK[before]:
            self.requests[began] = outcome
        elif before == "open":  # A later line says that no reply will come any more.
            self.requests[began] = "missing"

    def settle(self, last: int, late_rounds: int) -> None:
        """Count open requests as missing that could not have been answered any more.

        At the end of the run, in round ``last``, a request stays open if its reply would still have
        counted, and if the member has answered other requests at most one round less late.
        """
        patience = self._patience(late_rounds)
        for began, outcome in self.requests.items():
            if outcome == "open" and last - began > patience:
                self.requests[began] = "missing"

    def _patience(self, late_rounds: int) -> int:
        """Return how many rounds old an open request may be at the end; -1: none stays open."""
        outcomes = self.requests.values()
        has_answered = "answered" in outcomes or "late" in outcomes
        if not has_answered or not late_rounds:
            return -1
        return min(self.delay + 1, late_rounds)

    def turns(self, name: str, average: Mapping[int, float], *, drawn: bool) -> MemberTurns:
        """Return the member's part in the run.

        Parameters
        ----------
        name : str
            What the operator calls the member; empty: nothing.
        average : mapping of int to float
            By round, the share of the online members that were asked.
        drawn : bool
            Whether the rounds are drawn as letters.
        """
        last = max(average, default=0)
        absences = self._absences(last)
        status_by_round = {**absences, **self.requests}
        count = dict.fromkeys(LETTERS, 0) | Counter(status_by_round.values())
        count["asked"] = len(self.requests) - count["open"]
        # Rounds in which it was not registered any more, or kept away by a callback, are no turns.
        missed = [number for number, why in absences.items() if why in ("offline", "paused")]
        missed_turns = math.fsum(average.get(number, 0.0) for number in missed)
        # In floating point 36 thirds are more than 12, and 12 of 24 replies less than a half.
        turns = count["asked"] + round(missed_turns, 9)
        usable = count["answered"] + count["late"]
        participation = None
        if turns:
            participation = min(usable / turns, 1.0)
        letters = ""
        if drawn:
            letters = _letters(status_by_round, last)
        return MemberTurns(
            client_id=self.client_id,
            partition_id=self.partition_id,
            name=called(self.client_id, self.partition_id, name),
            count=count,
            participation=participation,
            revoked_in=self._revoked_in(),
            seen=self._seen(),
            rounds=letters,
        )

    def _absences(self, last: int) -> dict[int, Absence]:
        """Return why the member could not be asked, by round: a change holds until the next one."""
        ends = [change["round"] for change in self.changes[1:]]
        ends.append(last + 1)
        absences: dict[int, Absence] = {}
        for change, end in zip(self.changes, ends, strict=False):
            if change["presence"] == "there":
                continue
            for number in range(change["round"], end):
                # A member may be asked in the very round in which it leaves.
                if number not in self.requests:
                    absences[number] = change["presence"]
        return absences

    def _revoked_in(self) -> int | None:
        """Return the round in which the end of its registration was noticed; ``None``: it is valid.

        The outcome of a request shows it in the same round, the roll call only in the next.
        """
        if self.revoked_by_reply is not None:
            return self.revoked_by_reply
        if self.changes and self.changes[-1]["presence"] == "revoked":
            return int(self.changes[-1]["round"])
        return None

    def _seen(self) -> str:
        """Return when the member was seen last, in words; empty: it is not gone."""
        # The lines since it left: there are two if its registration ended while it was offline.
        gone = list(takewhile(lambda change: change["presence"] in _GONE, reversed(self.changes)))
        if not gone:
            return ""
        left = gone[-1]
        last_round = left["round"] - 1
        was_there = self.requests or len(gone) < len(self.changes)
        seen = "never"
        if was_there and last_round > 0:
            seen = f"round {last_round}"
        if left["at"]:
            seen += f", {left['at']} UTC"
        return seen


def completeness(
    rounds: Iterable[Line],
    replies: Iterable[Line],
    attendance: Iterable[Line],
    names: Mapping[int, str],
    settings: Mapping[str, Any],
) -> Completeness:
    """Return how complete a run is.

    Parameters
    ----------
    rounds, replies, attendance : iterable of mapping
        The lines of ``rounds.csv``, ``clients.csv`` and ``attendance.csv``. The line of round 0,
        which is before the first round, does not count.
    names : mapping of int to str
        What the operator calls members, by client id.
    settings : mapping
        The run's settings by key: ``least-participation``, ``num-server-rounds``,
        ``pace.late-rounds`` and ``pace.rounds`` are read.
    """
    rounds = [row for row in rounds if row["round"]]
    last = max((row["round"] for row in rounds), default=0)
    records: dict[int, _Recorded] = {}
    for reply in replies:
        client_id = reply["client_id"]
        record = records.setdefault(client_id, _Recorded(client_id))
        record.add(reply)
    for change in attendance:
        client_id = change["client_id"]
        record = records.setdefault(client_id, _Recorded(client_id, change["partition_id"]))
        record.changes.append(change)
    average = _average_requests(rounds, records.values())
    late_rounds = _late_rounds(settings)
    drawn = len(records) * last <= _MOST_LETTERS
    members = []
    for client_id, record in records.items():
        record.settle(last, late_rounds)
        members.append(record.turns(names.get(client_id, ""), average, drawn=drawn))
    members.sort(key=_least_first)
    least = float(settings.get("least-participation", LEAST_PARTICIPATION))
    planned = int(settings.get("num-server-rounds", last))
    verdict, reasons = _verdict_on(members, rounds, least, planned)
    return Completeness(verdict, tuple(reasons), tuple(members), last)


def whole_percent(share: float) -> str:
    """Return a share in whole percent, rounded down: 49.6 % must not read as a half."""
    # In floating point 100 * 0.29 is 28.999..., and means 29.
    return f"{math.floor(100 * share + 1e-9)} %"


def is_failed(row: Line) -> bool:
    """Whether a round failed, or most of its clients did."""
    num_asked = row["accepted"] + row["rejected"] + row["failed"]
    return bool(row["round_failed"]) or 2 * row["failed"] > num_asked


def _late_rounds(settings: Mapping[str, Any]) -> int:
    """Return how many rounds late a reply may be and still count."""
    late_rounds = int(settings.get("pace.late-rounds", 0))
    if not late_rounds and settings.get("pace.rounds") == "buffered":
        return ALWAYS
    return late_rounds


def _average_requests(rounds: Iterable[Line], records: Iterable[_Recorded]) -> dict[int, float]:
    """Return by round the share of the online members that were asked, at most 1."""
    num_requests: Counter[int] = Counter()
    for record in records:
        for number in record.requests:
            num_requests[number] += 1
    average = {}
    for row in rounds:
        number = row["round"]
        average[number] = min(num_requests[number] / max(row["online"], 1), 1.0)
    return average


def _least_first(member: MemberTurns) -> tuple[float, int]:
    """Return the sort key by which the least participation comes first, and no turn last."""
    if member.participation is None:
        return 2.0, member.client_id  # More than any participation.
    return member.participation, member.client_id


def _letters(status_by_round: Mapping[int, str], last: int) -> str:
    """Return a letter for each round from 1 to ``last``."""
    letters = ""
    for number in range(1, last + 1):
        if number in status_by_round:
            letters += LETTERS[status_by_round[number]]
        else:
            letters += NOT_ASKED
    return letters


def _outcome(reply: Line) -> Outcome:
    """Return what became of a request, according to a line of ``clients.csv``."""
    status = reply["status"]
    if status == "accepted" and reply["asked_in"]:
        return "late"
    if status == "accepted":
        return "answered"
    if status == "refused":
        return "refused"
    if status == "late":
        return "open"
    return "missing"


def _verdict_on(
    members: Sequence[MemberTurns], rounds: Sequence[Line], least: float, planned: int
) -> tuple[Verdict, list[str]]:
    """Return the verdict on a run, and the sentences that it rests on.

    ``least`` is the smallest participation with which a member does not make the run incomplete.
    ``planned`` is how many rounds the run was to have.
    """
    short = []
    silent = []
    gaps = []
    for member in members:
        if member.participation is not None and member.participation < least:
            short.append(member)
        elif member.is_silent:
            silent.append(member)
        elif member.has_gaps:
            gaps.append(member)
    num_failed = sum(is_failed(row) for row in rounds)
    ends_badly = bool(rounds) and is_failed(rounds[-1])
    reasons = []
    if ends_badly:
        reasons.append("The last round failed.")
    if short:
        reasons.append(
            f"{len(short)} of {len(members)} members took part in less than {100 * least:g} % of "
            f"their turns: {_listed(short)}."
        )
    if silent:
        reasons.append(f"Never answered: {_listed(silent)}.")
    if gaps:
        reasons.append(f"{len(gaps)} of {len(members)} members missed turns: {_listed(gaps)}.")
    if num_failed and not ends_badly:
        reasons.append(f"{num_failed} of {len(rounds)} rounds failed.")
    verdict: Verdict = "complete with gaps"
    if not any(member.usable for member in members):
        reasons.append("No reply was usable.")
        verdict = "incomplete"
    elif ends_badly or short:
        verdict = "incomplete"
    elif not reasons:
        reasons.append("Every request was answered.")
        verdict = "complete"
    if len(rounds) < planned:
        # A callback may have ended the run, or somebody has cut the records: both leave a gap.
        reasons.insert(0, f"Only {len(rounds)} of {planned} rounds are there.")
        if verdict == "complete":
            verdict = "complete with gaps"
    reasons += _never_drawn(members, rounds)
    return verdict, reasons


def _never_drawn(members: Sequence[MemberTurns], rounds: Sequence[Line]) -> list[str]:
    """Return a sentence about members that were online and never asked; empty if there are none.

    Members that no table names are counted too: their number follows from how many were online.
    """
    never = []
    for member in members:
        was_asked = member.count["asked"] or member.count["open"]
        if not was_asked and not member.has_gaps:
            never.append(member)
    most_online = max((row["online"] for row in rounds), default=0)
    num_unnamed = max(most_online - len(members), 0)
    count = len(never) + num_unnamed
    if not count:
        return []
    noun = "members"
    if count == 1:
        noun = "member"
    names = ""
    if not num_unnamed:  # A list of only some of them would read as a list of all.
        names = f": {_listed(never)}"
    return [f"Never drawn: {count} {noun}{names}."]


def _listed(members: Sequence[MemberTurns]) -> str:
    """Return members in words, the first few of them."""
    return listed([member.description for member in members], most=_MOST_NAMED)
