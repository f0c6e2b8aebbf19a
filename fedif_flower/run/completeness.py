r"""Whether a run has what it asked for: each member's replies, its absences, and a verdict.

A member's participation is

.. math:: p_i = \frac{\text{usable replies}}{\text{asked} + \sum_{t \in A_i} a_t},

with :math:`A_i` the rounds in which it could not be asked, being offline or paused after errors,
and :math:`a_t` how often a member that was online was asked in round t on average: 1 where all
are. A late reply that counted is usable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

from fedif_flower.messages.client_node import called
from fedif_flower.run.presence import Presence
from fedif_flower.run.rows import Line
from fedif_flower.strategies.config import ALWAYS

Verdict = Literal["complete", "complete with gaps", "incomplete"]
# What became of a round for a member, with the letter that stands for it. A request is open where
# the run ended before a member answered that had answered others as late.
Outcome = Literal["answered", "late", "missing", "refused", "open"]
Absence = Literal["offline", "revoked", "paused", "not admitted"]
LETTERS: Mapping[Outcome | Absence, str] = {
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
_MOST_NAMED = 8
_MOST_LETTERS = 20_000  # Members times rounds that are drawn.
_GONE = ("offline", "revoked")
_RANK: Mapping[Outcome, int] = {"missing": 0, "open": 0, "refused": 1, "late": 2, "answered": 2}
LEAST_PARTICIPATION = 0.5


@dataclass(frozen=True)
class MemberTurns:
    """A member over the run: requests by what became of them, and rounds that it was not asked in.

    Attributes
    ----------
    client_id, partition_id, name
        Who it is, and what reports call it.
    asked : int
        Requests: ``answered + late + missing + refused``.
    answered, late, missing, refused : int
        A usable reply in its round; in a later one; none, or an error; one that was not usable.
    open : int
        Requests that the run's end cut off: they do not count.
    offline, paused, not_admitted : int
        Rounds in which it could not be asked.
    participation : float, optional
        In [0, 1]; ``None``: it never had a turn.
    presence : Presence
        What it was in the end.
    last_seen : str
        When it was seen last, in UTC; empty: in the last round, or nobody knows.
    last_round : int
        The last round in which it was there.
    rounds : str
        A letter for each round (:data:`LETTERS`); empty where there are too many.
    """

    client_id: int
    partition_id: int
    name: str
    asked: int
    answered: int
    late: int
    missing: int
    refused: int
    open: int
    offline: int
    paused: int
    not_admitted: int
    participation: float | None
    presence: Presence
    last_seen: str
    last_round: int
    rounds: str

    @property
    def usable(self) -> int:
        """Replies that counted."""
        return self.answered + self.late

    @property
    def has_gaps(self) -> bool:
        """Whether a reply of it is missing, or could not be asked for."""
        lost = self.missing + self.refused + self.offline + self.paused
        return lost > 0 or self.presence == "revoked"

    @property
    def seen(self) -> str:
        """When it was seen last, in words; empty: it was there to the end."""
        if self.presence not in _GONE:
            return ""
        seen = f"round {self.last_round}" if self.last_round else "never"
        return seen + (f", {self.last_seen} UTC" if self.last_seen else "")

    @property
    def told(self) -> str:
        """Its name and share, and since when it is gone, in words."""
        share = "never asked" if self.participation is None else f"{100 * self.participation:.0f} %"
        if self.asked and not self.usable:
            share = "never answered"
        how = "; registration ended" if self.presence == "revoked" else ""
        seen = f"; last seen: {self.seen}" if self.seen else ""
        return f"{self.name} ({share}{how}{seen})"


@dataclass(frozen=True)
class Completeness:
    """A run's verdict, why, and its members: those with the least participation first."""

    verdict: Verdict
    reasons: tuple[str, ...]
    members: tuple[MemberTurns, ...]
    rounds: int

    @property
    def headline(self) -> str:
        """The verdict and why, in words."""
        return f"{self.verdict[0].upper()}{self.verdict[1:]}: {' '.join(self.reasons)}"

    def to_record(self) -> dict[str, object]:
        """Return verdict, reasons and sums for ``summary.json``."""
        names = ("asked", "answered", "late", "missing", "refused")
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "members": len(self.members),
            **{name: sum(getattr(m, name) for m in self.members) for name in names},
            "never_answered": [m.name for m in self.members if m.asked and not m.usable][:100],
        }


@dataclass
class _Recorded:
    """What the tables say of a member: its requests by round, and when it came and left."""

    partition_id: int
    requests: dict[int, Outcome] = field(default_factory=dict)
    changes: list[Line] = field(default_factory=list)
    delay: int = 0  # The longest of a late reply that counted, in rounds.

    def add(self, reply: Line) -> None:
        """Take in what became of a request, or of another one made in the same round."""
        self.partition_id = reply["partition_id"]
        began, outcome = reply["asked_in"] or reply["round"], _outcome(reply)
        if outcome == "late":
            self.delay = max(self.delay, reply["round"] - began)
        before = self.requests.get(began)
        if before is None or _RANK[outcome] > _RANK[before]:
            self.requests[began] = outcome
        elif before == "open":  # It is known now that no reply will come.
            self.requests[began] = "missing"

    def settle(self, last: int, late_rounds: int) -> None:
        """Let requests that are too late for a reply be missing.

        A request is open at the end while its time is not over, if the member did answer others,
        at most one round less late.
        """
        answers = {"answered", "late"} & set(self.requests.values())
        patience = min(self.delay + 1, late_rounds) if answers and late_rounds else -1
        for began, outcome in self.requests.items():
            if outcome == "open" and last - began > patience:
                self.requests[began] = "missing"

    def absences(self, last: int) -> dict[int, Absence]:
        """Return the rounds in which it could not be asked, and why."""
        ends = [*(change["round"] for change in self.changes[1:]), last + 1]
        return {
            number: change["presence"]
            for change, end in zip(self.changes, ends, strict=False)
            if change["presence"] != "there"
            for number in range(change["round"], end)
            if number not in self.requests
        }

    def turns(
        self, client_id: int, name: str, average: Mapping[int, float], *, drawn: bool
    ) -> MemberTurns:
        """Return its part in the run; ``average`` has how often a member was asked, by round."""
        last = max(average, default=0)
        absences = self.absences(last)
        count: Counter[str] = Counter([*self.requests.values(), *absences.values()])
        asked, usable = len(self.requests) - count["open"], count["answered"] + count["late"]
        missed = [t for t, why in absences.items() if why in ("offline", "paused")]
        turns = asked + sum(average.get(t, 0.0) for t in missed)
        # Lines say that it is gone, and say so again.
        gone = list(takewhile(lambda c: c["presence"] in _GONE, reversed(self.changes)))
        seen, last_seen = last, ""
        if gone:
            was_there = self.requests or len(gone) < len(self.changes)
            seen = max(gone[-1]["round"] - 1, 0) if was_there else 0
            last_seen = gone[-1]["at"] or ""
        letters = {t: LETTERS[why] for t, why in (*absences.items(), *self.requests.items())}
        told = range(1, last + 1) if drawn else ()
        counted = ("answered", "late", "missing", "refused", "open", "offline", "paused")
        return MemberTurns(
            client_id=client_id,
            partition_id=self.partition_id,
            name=name,
            asked=asked,
            **{what: count[what] for what in counted},
            not_admitted=count["not admitted"],
            participation=min(usable / turns, 1.0) if turns else None,
            presence=self.changes[-1]["presence"] if self.changes else "there",
            last_seen=last_seen,
            last_round=seen,
            rounds="".join(letters.get(number, NOT_ASKED) for number in told),
        )


def completeness(
    rounds: Iterable[Line],
    replies: Iterable[Line],
    attendance: Iterable[Line],
    names: Mapping[int, str],
    settings: Mapping[str, Any],
) -> Completeness:
    """Return how complete a run is that came to its end.

    Parameters
    ----------
    rounds, replies, attendance : iterable of mapping
        The lines of ``rounds.csv``, of which round 0 is none, ``clients.csv`` and
        ``attendance.csv``.
    names : mapping of int to str
        What the operator calls members, by client id.
    settings : mapping
        The run's, by their keys: ``least-participation``, and for how many rounds a request may
        still be answered.
    """
    rounds = [row for row in rounds if row["round"]]
    last = max((row["round"] for row in rounds), default=0)
    late_rounds = int(settings.get("pace.late-rounds", 0))
    if not late_rounds and settings.get("pace.rounds") == "buffered":
        late_rounds = ALWAYS
    found: dict[int, _Recorded] = {}
    for reply in replies:
        found.setdefault(reply["client_id"], _Recorded(-1)).add(reply)
    for change in attendance:
        own = found.setdefault(change["client_id"], _Recorded(change["partition_id"]))
        own.changes.append(change)
    requests = Counter(began for own in found.values() for began in own.requests)
    average = {r["round"]: min(requests[r["round"]] / max(r["online"], 1), 1.0) for r in rounds}
    drawn = len(found) * last <= _MOST_LETTERS
    members = []
    for client_id, own in found.items():
        own.settle(last, late_rounds)
        name = called(client_id, own.partition_id, names.get(client_id, ""))
        members.append(own.turns(client_id, name, average, drawn=drawn))
    members.sort(key=lambda m: (2.0 if m.participation is None else m.participation, m.client_id))
    least = float(settings.get("least-participation", LEAST_PARTICIPATION))
    verdict, reasons = _judged(members, rounds, least)
    return Completeness(verdict, tuple(reasons), tuple(members), last)


def is_failed(row: Line) -> bool:
    """Tell whether a round made no step, or most of its clients failed."""
    asked = row["accepted"] + row["rejected"] + row["failed"]
    return bool(row["round_failed"]) or 2 * row["failed"] > asked


def _outcome(reply: Line) -> Outcome:
    if reply["status"] == "accepted":
        return "late" if reply["asked_in"] else "answered"
    words: dict[str, Outcome] = {"refused": "refused", "late": "open"}
    return words.get(reply["status"], "missing")


def _judged(
    members: Sequence[MemberTurns], rounds: Sequence[Line], least: float
) -> tuple[Verdict, list[str]]:
    """Return a verdict, and what it rests on in sentences."""
    reasons = []
    failed = [is_failed(row) for row in rounds]
    ends_badly = failed[-1:] == [True]
    short = [m for m in members if m.participation is not None and m.participation < least]
    if ends_badly:
        reasons.append("The last round failed.")
    if short:
        reasons.append(
            f"{len(short)} of {len(members)} members took part in less than {100 * least:.0f} % of "
            f"their turns: {_listed(short)}."
        )
    if silent := [m for m in members if m.asked and not m.usable and m not in short]:
        reasons.append(f"Never answered: {_listed(silent)}.")
    if gaps := [m for m in members if m.has_gaps and m not in short and m not in silent]:
        reasons.append(f"{len(gaps)} of {len(members)} members missed turns: {_listed(gaps)}.")
    if any(failed) and not ends_badly:
        reasons.append(f"{sum(failed)} of {len(rounds)} rounds failed.")
    verdict: Verdict = "complete with gaps" if reasons else "complete"
    if not any(m.usable for m in members):
        reasons.append("No reply was usable.")
        verdict = "incomplete"
    elif ends_badly or short:
        verdict = "incomplete"
    elif not reasons:
        reasons.append("Every request was answered.")
    never = [m for m in members if not m.asked and not m.open and not m.has_gaps]
    unknown = max(max((row["online"] for row in rounds), default=0) - len(members), 0)
    if count := len(never) + unknown:
        names = f": {_listed(never)}" if never and not unknown else ""
        reasons.append(f"Never drawn: {count} member{'s' if count > 1 else ''}{names}.")
    return verdict, reasons


def _listed(members: Sequence[MemberTurns]) -> str:
    more = f" and {len(members) - _MOST_NAMED} more" if len(members) > _MOST_NAMED else ""
    return ", ".join(member.told for member in members[:_MOST_NAMED]) + more
