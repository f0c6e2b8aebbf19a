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
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from fedif_flower.messages.client_node import called
from fedif_flower.messages.screening import Status
from fedif_flower.run.rows import AttendanceRow
from fedif_flower.sections import require_fields
from fedif_flower.settings import Setting
from fedif_flower.strategies.config import ALWAYS
from fedif_flower.strategies.presence import Presence

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
_RANK: Mapping[Outcome, int] = {"missing": 0, "open": 0, "refused": 1, "late": 2, "answered": 2}


class _Reply(Protocol):
    """A line of ``clients.csv``, as far as it is needed."""

    @property
    def round(self) -> int: ...
    @property
    def partition_id(self) -> int: ...
    @property
    def client_id(self) -> int: ...
    @property
    def status(self) -> Status: ...
    @property
    def asked_in(self) -> int | None: ...


class _Round(Protocol):
    """A line of ``rounds.csv``, as far as it is needed."""

    @property
    def round(self) -> int: ...
    @property
    def online(self) -> int: ...
    @property
    def is_failed(self) -> bool: ...


@dataclass(frozen=True)
class CompletenessRule:
    """When a run counts as complete.

    Parameters
    ----------
    least_participation : float
        A run in which a member took part in less than this share of its turns is incomplete, in
        [0, 1].
    late_rounds : int
        So many rounds after it was made a request may still be answered, >= 0.
    """

    least_participation: Annotated[
        float,
        Setting(
            "a run in which a member took part in less than this share of its turns is "
            "`incomplete`: it ends with exit status 3 (`docs/consortium.md`); "
            "0: none is for that",
            ge=0,
            le=1,
            changes_result=False,
        ),
    ] = 0.5
    late_rounds: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for what is out of range."""
        require_fields(self)


DEFAULT_RULE = CompletenessRule()


def configured_rule(settings: Mapping[str, Any]) -> CompletenessRule:
    """Return the rule that a run's settings name, by their keys."""
    late = int(settings.get("pace.late-rounds", 0))
    if not late and settings.get("pace.rounds") == "buffered":
        late = ALWAYS
    least = settings.get("least-participation", DEFAULT_RULE.least_participation)
    return CompletenessRule(float(least), late)


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
        if self.presence not in ("offline", "revoked"):
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


def completeness(
    rounds: Sequence[_Round],
    replies: Iterable[_Reply],
    attendance: Iterable[AttendanceRow],
    names: Mapping[int, str],
    rule: CompletenessRule,
) -> Completeness:
    """Return how complete a run is that came to its end.

    Parameters
    ----------
    rounds : sequence of RoundRow
        The lines of ``rounds.csv``; round 0 is none.
    replies, attendance : iterable
        The lines of ``clients.csv`` and ``attendance.csv``.
    names : mapping of int to str
        What the operator calls members, by client id.
    rule : CompletenessRule
        When it counts as complete.
    """
    rounds = [row for row in rounds if row.round]
    last = max((row.round for row in rounds), default=0)
    partitions: dict[int, int] = {}
    asked: dict[int, dict[int, Outcome]] = {}
    delays: Counter[int] = Counter()
    for reply in replies:
        partitions[reply.client_id] = reply.partition_id
        found = asked.setdefault(reply.client_id, {})
        began = reply.asked_in or reply.round
        outcome = _outcome(reply)
        if outcome == "late":
            delays[reply.client_id] = max(delays[reply.client_id], reply.round - began)
        if began not in found or _RANK[outcome] > _RANK[found[began]]:
            found[began] = outcome
        elif found[began] == "open":  # It is known now that no reply will come.
            found[began] = "missing"
    changes: dict[int, list[AttendanceRow]] = {}
    for change in attendance:
        partitions.setdefault(change.client_id, change.partition_id)
        changes.setdefault(change.client_id, []).append(change)
    requests = Counter(began for found in asked.values() for began in found)
    average = {row.round: min(requests[row.round] / max(row.online, 1), 1.0) for row in rounds}
    drawn = len(partitions) * last <= _MOST_LETTERS
    members = [
        _member(
            client_id,
            partition_id,
            called(client_id, partition_id, names.get(client_id, "")),
            _settled(asked.get(client_id, {}), last, delays[client_id], rule.late_rounds),
            _absences(changes.get(client_id, ()), last),
            changes.get(client_id, ()),
            average,
            last,
            drawn=drawn,
        )
        for client_id, partition_id in partitions.items()
    ]
    members.sort(key=lambda m: (2.0 if m.participation is None else m.participation, m.client_id))
    most = max((row.online for row in rounds), default=0)
    verdict, reasons = _judged(members, rounds, rule.least_participation, most)
    return Completeness(verdict, tuple(reasons), tuple(members), last)


def _outcome(reply: _Reply) -> Outcome:
    if reply.status == "accepted":
        return "late" if reply.asked_in else "answered"
    if reply.status == "refused":
        return "refused"
    return "open" if reply.status == "late" else "missing"


def _settled(
    found: Mapping[int, Outcome], last: int, delay: int, late_rounds: int
) -> dict[int, Outcome]:
    """Return a member's requests by round, with those that are too late for a reply as missing.

    A request is open at the end while its time is not over, if the member did answer others, at
    most one round less late.
    """
    answers = any(outcome in ("answered", "late") for outcome in found.values())
    patience = min(delay + 1, late_rounds) if answers and late_rounds else -1
    return {
        began: "missing" if outcome == "open" and last - began > patience else outcome
        for began, outcome in sorted(found.items())
    }


def _absences(changes: Sequence[AttendanceRow], last: int) -> dict[int, Absence]:
    """Return a member's rounds in which it could not be asked, and why."""
    absent: dict[int, Absence] = {}
    for i, change in enumerate(changes):
        end = changes[i + 1].round if i + 1 < len(changes) else last + 1
        if change.presence != "there":
            absent |= dict.fromkeys(range(change.round, end), change.presence)
    return absent


def _member(
    client_id: int,
    partition_id: int,
    name: str,
    requests: Mapping[int, Outcome],
    absences: Mapping[int, Absence],
    changes: Sequence[AttendanceRow],
    average: Mapping[int, float],
    last: int,
    *,
    drawn: bool,
) -> MemberTurns:
    absences = {number: why for number, why in absences.items() if number not in requests}
    count, away = Counter(requests.values()), Counter(absences.values())
    num_asked = len(requests) - count["open"]
    lost = sum(average.get(t, 0.0) for t, why in absences.items() if why in ("offline", "paused"))
    turns = num_asked + lost
    presence = changes[-1].presence if changes else "there"
    gone = presence in ("offline", "revoked")
    # Before the line that says that it is gone, and says so again.
    first = next((c for c in _run_of(changes) if gone), None)
    seen = [*requests, *(c.round for c in changes if c.presence not in ("offline", "revoked"))]
    letters = ""
    if drawn:
        of_round = {number: LETTERS[why] for number, why in (*absences.items(), *requests.items())}
        letters = "".join(of_round.get(number, NOT_ASKED) for number in range(1, last + 1))
    return MemberTurns(
        client_id=client_id,
        partition_id=partition_id,
        name=name,
        asked=num_asked,
        answered=count["answered"],
        late=count["late"],
        missing=count["missing"],
        refused=count["refused"],
        open=count["open"],
        offline=away["offline"],
        paused=away["paused"],
        not_admitted=away["not admitted"],
        participation=min((count["answered"] + count["late"]) / turns, 1.0) if turns else None,
        presence=presence,
        last_seen=first.at if first else "",
        last_round=(max(first.round - 1, 0) if seen else 0) if first else last,
        rounds=letters,
    )


def _run_of(changes: Sequence[AttendanceRow]) -> Sequence[AttendanceRow]:
    """Return the lines since which a member is gone."""
    start = len(changes)
    while start and changes[start - 1].presence in ("offline", "revoked"):
        start -= 1
    return changes[start:]


def _judged(
    members: Sequence[MemberTurns], rounds: Sequence[_Round], least: float, most_online: int
) -> tuple[Verdict, list[str]]:
    """Return a verdict, and what it rests on in sentences."""
    reasons = []
    failed = [row.round for row in rounds if row.is_failed]
    ends_badly = bool(rounds) and rounds[-1].is_failed
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
    gaps = [m for m in members if m.has_gaps and m not in short and m not in silent]
    if gaps:
        reasons.append(f"{len(gaps)} of {len(members)} members missed turns: {_listed(gaps)}.")
    if failed and not ends_badly:
        reasons.append(f"{len(failed)} of {len(rounds)} rounds failed.")
    verdict: Verdict = "complete with gaps" if reasons else "complete"
    if ends_badly or short or not any(m.usable for m in members):
        verdict = "incomplete"
    if not any(m.usable for m in members):
        reasons.append("No reply was usable.")
    elif not reasons:
        reasons.append("Every request was answered.")
    never = [m for m in members if not m.asked and not m.open and not m.has_gaps]
    unknown = max(most_online - len(members), 0)
    if never or unknown:
        names = f": {_listed(never)}" if never and not unknown else ""
        count = len(never) + unknown
        reasons.append(f"Never drawn: {count} member{'s' if count > 1 else ''}{names}.")
    return verdict, reasons


def _listed(members: Sequence[MemberTurns]) -> str:
    more = f" and {len(members) - _MOST_NAMED} more" if len(members) > _MOST_NAMED else ""
    return ", ".join(member.told for member in members[:_MOST_NAMED]) + more
