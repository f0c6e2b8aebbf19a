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
from fedif_flower.run.rows import Line
from fedif_flower.strategies.config import ALWAYS

Verdict = Literal["complete", "complete with gaps", "incomplete"]
# What became of a round for a member, with the letter that stands for it. A request is open where
# the run ended before a member answered that had answered others as late.
Outcome = Literal["answered", "late", "missing", "refused", "open"]
Absence = Literal["offline", "revoked", "paused", "not admitted"]
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
    count : mapping of str to int
        Requests and absences, by what they were; ``asked``: requests that the end did not cut off.
    participation : float, optional
        In [0, 1]; ``None``: it never had a turn.
    is_revoked : bool
        Whether its registration had ended in the end.
    seen : str
        When it was seen last, in words; empty: it was there to the end.
    rounds : str
        A letter for each round (:data:`LETTERS`); empty where there are too many.
    """

    client_id: int
    partition_id: int
    name: str
    count: Mapping[str, int]
    participation: float | None
    is_revoked: bool
    seen: str
    rounds: str

    @property
    def usable(self) -> int:
        """Replies that counted."""
        return self.count["answered"] + self.count["late"]

    @property
    def is_silent(self) -> bool:
        """Whether it never gave what it was asked for."""
        return self.count["asked"] > 0 and not self.usable

    @property
    def has_gaps(self) -> bool:
        """Whether a reply of it is missing, or could not be asked for."""
        lost = ("missing", "refused", "offline", "paused")
        return self.is_revoked or any(self.count[what] for what in lost)

    @property
    def told(self) -> str:
        """Its name and share, and since when it is gone, in words."""
        share = "never asked" if self.participation is None else f"{100 * self.participation:.0f} %"
        if self.is_silent:
            share = "never answered"
        how = "; registration ended" if self.is_revoked else ""
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
            **{name: sum(member.count[name] for member in self.members) for name in names},
            "never_answered": [m.name for m in self.members if m.is_silent][:100],
        }


@dataclass
class _Recorded:
    """What the tables say of a member: its requests by round, and when it came and left."""

    client_id: int
    partition_id: int = -1
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

    def turns(self, name: str, average: Mapping[int, float], *, drawn: bool) -> MemberTurns:
        """Return its part in the run; ``average`` has how often a member was asked, by round."""
        last = max(average, default=0)
        ends = [*(change["round"] for change in self.changes[1:]), last + 1]
        absences: dict[int, Absence] = {
            number: change["presence"]
            for change, end in zip(self.changes, ends, strict=False)
            if change["presence"] != "there"
            for number in range(change["round"], end)
            if number not in self.requests
        }
        became = {**absences, **self.requests}
        count = dict.fromkeys(LETTERS, 0) | Counter(became.values())
        count["asked"] = len(self.requests) - count["open"]
        missed = [t for t, why in absences.items() if why in ("offline", "paused")]
        turns = count["asked"] + sum(average.get(t, 0.0) for t in missed)
        usable = count["answered"] + count["late"]
        letters = {t: LETTERS[what] for t, what in became.items()}
        told = range(1, last + 1) if drawn else ()
        return MemberTurns(
            client_id=self.client_id,
            partition_id=self.partition_id,
            name=called(self.client_id, self.partition_id, name),
            count=count,
            participation=min(usable / turns, 1.0) if turns else None,
            is_revoked=bool(self.changes) and self.changes[-1]["presence"] == "revoked",
            seen=self._seen(),
            rounds="".join(letters.get(number, NOT_ASKED) for number in told),
        )

    def _seen(self) -> str:
        """Return when it was seen last, if it is gone."""
        # Lines say that it is gone, and say so again.
        gone = list(takewhile(lambda c: c["presence"] in _GONE, reversed(self.changes)))
        if not gone:
            return ""
        was_there = self.requests or len(gone) < len(self.changes)
        since, at = gone[-1]["round"] - 1, gone[-1]["at"]
        seen = f"round {since}" if was_there and since > 0 else "never"
        return seen + (f", {at} UTC" if at else "")


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
        found.setdefault(reply["client_id"], _Recorded(reply["client_id"])).add(reply)
    for change in attendance:
        own = _Recorded(change["client_id"], change["partition_id"])
        found.setdefault(change["client_id"], own).changes.append(change)
    requests = Counter(began for own in found.values() for began in own.requests)
    average = {r["round"]: min(requests[r["round"]] / max(r["online"], 1), 1.0) for r in rounds}
    drawn = len(found) * last <= _MOST_LETTERS
    members = []
    for client_id, own in found.items():
        own.settle(last, late_rounds)
        members.append(own.turns(names.get(client_id, ""), average, drawn=drawn))
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
    reasons, short, silent, gaps = [], [], [], []
    for member in members:
        if member.participation is not None and member.participation < least:
            short.append(member)
        elif member.is_silent:
            silent.append(member)
        elif member.has_gaps:
            gaps.append(member)
    failed = [is_failed(row) for row in rounds]
    ends_badly = failed[-1:] == [True]
    if ends_badly:
        reasons.append("The last round failed.")
    if short:
        reasons.append(
            f"{len(short)} of {len(members)} members took part in less than {100 * least:.0f} % of "
            f"their turns: {_listed(short)}."
        )
    if silent:
        reasons.append(f"Never answered: {_listed(silent)}.")
    if gaps:
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
    never = [m for m in members if not (m.count["asked"] or m.count["open"] or m.has_gaps)]
    unknown = max(max((row["online"] for row in rounds), default=0) - len(members), 0)
    if count := len(never) + unknown:
        names = f": {_listed(never)}" if never and not unknown else ""
        reasons.append(f"Never drawn: {count} member{'s' if count > 1 else ''}{names}.")
    return verdict, reasons


def _listed(members: Sequence[MemberTurns]) -> str:
    more = f" and {len(members) - _MOST_NAMED} more" if len(members) > _MOST_NAMED else ""
    return ", ".join(member.told for member in members[:_MOST_NAMED]) + more
