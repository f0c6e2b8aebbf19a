"""Verdicts on tiny records, worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.messages.screening import Status
from fedif_flower.run.completeness import (
    Completeness,
    CompletenessRule,
    MemberTurns,
    completeness,
    configured_rule,
)
from fedif_flower.run.rows import AttendanceRow
from fedif_flower.strategies.config import ALWAYS

NAMES = {1: "ada", 2: "bob", 3: "cyd"}


@dataclass(frozen=True)
class Line:
    round: int
    client_id: int
    status: Status = "accepted"
    asked_in: int | None = None

    @property
    def partition_id(self) -> int:
        return self.client_id - 1


@dataclass(frozen=True)
class Round:
    round: int
    online: int = 3
    is_failed: bool = False


def judged(
    lines, rounds: int = 4, *, changes=(), online: int = 3, failed=(), **rule
) -> tuple[Completeness, dict[str, MemberTurns]]:
    of_rounds = [Round(t, online, t in failed) for t in range(rounds + 1)]
    found = completeness(of_rounds, lines, changes, NAMES, CompletenessRule(**rule))
    return found, {member.name: member for member in found.members}


def answers(client_id: int, *numbers: int, status: Status = "accepted") -> list[Line]:
    return [Line(number, client_id, status) for number in numbers]


ALL = [line for i in NAMES for line in answers(i, 1, 2, 3, 4)]


def test_where_everybody_answered_a_run_is_complete():
    found, members = judged(ALL)
    assert (found.verdict, found.reasons) == ("complete", ("Every request was answered.",))
    ada = members["ada"]
    assert (ada.asked, ada.answered, ada.participation, ada.rounds) == (4, 4, 1.0, "++++")
    assert not ada.has_gaps


@pytest.mark.parametrize(
    ("later", "letters"),
    [
        ([], "-..+"),
        ([Line(2, 2, "away", 1)], "-..+"),
        ([Line(2, 2, "refused", 1)], "x..+"),
    ],
)
def test_a_late_reply_that_did_not_count_is_a_gap(later, letters):
    lines = [*answers(1, 1, 2, 3, 4), Line(1, 2, "late"), *later, Line(4, 2)]
    found, members = judged(lines, late_rounds=2, online=2)
    assert members["bob"].rounds == letters
    assert members["bob"].participation == 0.5
    assert (found.verdict, found.reasons) == (
        "complete with gaps",
        ("1 of 2 members missed turns: bob (50 %).",),
    )


def test_what_the_end_cut_off_is_open_where_the_member_used_to_answer():
    lines = [*answers(1, 1, 2, 3), Line(4, 1, "late"), *answers(2, 1, 2, 3, status="late")]
    lines += answers(2, 4, status="late")
    found, members = judged(lines, late_rounds=ALWAYS)
    assert (members["ada"].asked, members["ada"].open, members["ada"].rounds) == (3, 1, "+++>")
    assert (members["bob"].asked, members["bob"].missing) == (4, 4)  # It never answered.
    assert found.verdict == "incomplete"
    # Where nothing late counts, nothing is awaited.
    assert judged(lines)[1]["ada"].rounds == "+++-"


def test_rounds_in_which_a_member_was_offline_are_turns_that_it_missed():
    gone = [AttendanceRow(2, 1, 2, "offline", "2026-01-01 09:30:05")]
    lines = [*answers(1, 1, 2, 3, 4), *answers(2, 1), *answers(3, 1, 2, 3, 4)]
    found, members = judged(lines, changes=gone)
    bob = members["bob"]
    # In rounds 2 to 4 two of three requests were made: 3 x 2/3 = 2 turns.
    assert (bob.asked, bob.offline, bob.rounds) == (1, 3, "+ooo")
    assert bob.participation == pytest.approx(1 / 3)
    assert found.verdict == "incomplete"
    told = "bob (33 %; last seen: round 1, 2026-01-01 09:30:05 UTC)"
    assert found.reasons == (f"1 of 3 members took part in less than 50 % of their turns: {told}.",)
    assert judged(lines, changes=gone, least_participation=0.3)[0].verdict == "complete with gaps"


def test_who_never_answered_is_named_whatever_is_the_least():
    lines = [*answers(1, 1, 2), *answers(2, 1, 2, status="away"), *answers(3, 1, 2)]
    gone = [AttendanceRow(2, 1, 2, "offline", "2026-01-01 09:30:05")]
    found, _ = judged(lines, rounds=2, least_participation=0.0)
    assert found.reasons == ("Never answered: bob (never answered).",)
    assert found.verdict == "complete with gaps"
    seen = "never answered; last seen: round 1, 2026-01-01 09:30:05 UTC"
    assert f"bob ({seen})" in judged(lines, rounds=2, changes=gone)[0].headline


def test_a_registration_that_ended_between_rounds_has_a_line():
    there = AttendanceRow(1, 2, 3, "there", "2026-01-01 09:00:00")
    ended = AttendanceRow(2, 2, 3, "revoked", "2026-01-01 09:30:05")
    found, members = judged([*ALL[:8], *answers(3, 1)], changes=[there, ended])
    cyd = members["cyd"]
    assert (cyd.rounds, cyd.participation, cyd.presence) == ("+rrr", 1.0, "revoked")
    assert found.verdict == "complete with gaps"
    assert "cyd (100 %; registration ended; last seen: round 1" in found.headline


def test_pauses_are_turns_that_are_missed_and_a_quarantine_s_are_not():
    changes = [AttendanceRow(3, 0, 1, "paused"), AttendanceRow(3, 1, 2, "not admitted")]
    lines = [*answers(1, 1, 2, status="failed"), *answers(2, 1, 2), *answers(3, 1, 2, 3, 4)]
    found, members = judged(lines, changes=changes, online=1)
    assert (members["ada"].missing, members["ada"].paused, members["ada"].rounds) == (2, 2, "--pp")
    assert (members["bob"].participation, members["bob"].rounds) == (1.0, "++qq")
    assert found.reasons[0].endswith("their turns: ada (never answered).")


def test_a_failed_round_is_a_gap_and_a_failed_last_one_no_end():
    found, _ = judged(ALL, failed={2})
    assert (found.verdict, found.reasons) == ("complete with gaps", ("1 of 4 rounds failed.",))
    found, _ = judged(ALL, failed={4})
    assert (found.verdict, found.reasons) == ("incomplete", ("The last round failed.",))


def test_the_rule_is_read_off_settings():
    rule = configured_rule({"least-participation": 0.8, "pace.late-rounds": 3})
    assert rule == CompletenessRule(0.8, 3)
    assert configured_rule({"pace.rounds": "buffered", "pace.late-rounds": 0}).late_rounds == ALWAYS
    assert configured_rule({}) == CompletenessRule()
    with pytest.raises(ConfigError, match=r"least_participation = 1\.5"):
        CompletenessRule(1.5)
