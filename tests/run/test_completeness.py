"""Verdicts on tiny records, worked out by hand."""

from __future__ import annotations

import pytest

from fedif_flower.messages.screening import Status
from fedif_flower.run.completeness import Completeness, MemberTurns, completeness
from fedif_flower.run.rows import Line
from fedif_flower.strategies.reports import RoundReport

NAMES = {1: "ada", 2: "bob", 3: "cyd"}


def line(number: int, client_id: int, status: Status = "accepted", asked_in=None) -> Line:
    who = {"round": number, "client_id": client_id, "partition_id": client_id - 1}
    return {**who, "status": status, "asked_in": asked_in}


def change(number: int, client_id: int, presence: str, at: str = "") -> Line:
    who = {"round": number, "client_id": client_id, "partition_id": client_id - 1}
    return {**who, "presence": presence, "at": at}


def judged(
    lines, rounds: int = 4, *, changes=(), online: int = 3, failed=(), **settings
) -> tuple[Completeness, dict[str, MemberTurns]]:
    reports = [RoundReport(t, num_online=online, failed=t in failed) for t in range(rounds + 1)]
    found = completeness([r.line() for r in reports], lines, changes, NAMES, settings)
    return found, {member.name: member for member in found.members}


def answers(client_id: int, *numbers: int, status: Status = "accepted") -> list[Line]:
    return [line(number, client_id, status) for number in numbers]


ALL = [one for i in NAMES for one in answers(i, 1, 2, 3, 4)]


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
        ([line(2, 2, "away", 1)], "-..+"),
        ([line(2, 2, "refused", 1)], "x..+"),
    ],
)
def test_a_late_reply_that_did_not_count_is_a_gap(later, letters):
    lines = [*answers(1, 1, 2, 3, 4), line(1, 2, "late"), *later, line(4, 2)]
    found, members = judged(lines, online=2, **{"pace.late-rounds": 2})
    assert members["bob"].rounds == letters
    assert members["bob"].participation == 0.5
    assert (found.verdict, found.reasons) == (
        "complete with gaps",
        ("1 of 2 members missed turns: bob (50 %).",),
    )


def test_what_the_end_cut_off_is_open_where_the_member_used_to_answer():
    lines = [*answers(1, 1, 2, 3), line(4, 1, "late"), *answers(2, 1, 2, 3, status="late")]
    lines += answers(2, 4, status="late")
    found, members = judged(lines, **{"pace.rounds": "buffered"})
    assert (members["ada"].asked, members["ada"].open, members["ada"].rounds) == (3, 1, "+++>")
    assert (members["bob"].asked, members["bob"].missing) == (4, 4)  # It never answered.
    assert found.verdict == "incomplete"
    # Where nothing late counts, nothing is awaited.
    assert judged(lines)[1]["ada"].rounds == "+++-"


def test_rounds_in_which_a_member_was_offline_are_turns_that_it_missed():
    gone = [change(2, 2, "offline", "2026-01-01 09:30:05")]
    lines = [*answers(1, 1, 2, 3, 4), *answers(2, 1), *answers(3, 1, 2, 3, 4)]
    found, members = judged(lines, changes=gone)
    bob = members["bob"]
    # In rounds 2 to 4 two of three requests were made: 3 x 2/3 = 2 turns.
    assert (bob.asked, bob.offline, bob.rounds) == (1, 3, "+ooo")
    assert bob.participation == pytest.approx(1 / 3)
    assert found.verdict == "incomplete"
    told = "bob (33 %; last seen: round 1, 2026-01-01 09:30:05 UTC)"
    assert found.reasons == (f"1 of 3 members took part in less than 50 % of their turns: {told}.",)
    assert (
        judged(lines, changes=gone, **{"least-participation": 0.3})[0].verdict
        == "complete with gaps"
    )


def test_who_never_answered_is_named_whatever_is_the_least():
    lines = [*answers(1, 1, 2), *answers(2, 1, 2, status="away"), *answers(3, 1, 2)]
    gone = [change(2, 2, "offline", "2026-01-01 09:30:05")]
    found, _ = judged(lines, rounds=2, **{"least-participation": 0.0})
    assert found.reasons == ("Never answered: bob (never answered).",)
    assert found.verdict == "complete with gaps"
    seen = "never answered; last seen: round 1, 2026-01-01 09:30:05 UTC"
    assert f"bob ({seen})" in judged(lines, rounds=2, changes=gone)[0].headline


def test_a_registration_that_ended_between_rounds_has_a_line():
    there = change(1, 3, "there", "2026-01-01 09:00:00")
    ended = change(2, 3, "revoked", "2026-01-01 09:30:05")
    found, members = judged([*ALL[:8], *answers(3, 1)], changes=[there, ended])
    cyd = members["cyd"]
    assert (cyd.rounds, cyd.participation, cyd.presence) == ("+rrr", 1.0, "revoked")
    assert found.verdict == "complete with gaps"
    assert "cyd (100 %; registration ended; last seen: round 1" in found.headline


def test_pauses_are_turns_that_are_missed_and_a_quarantine_s_are_not():
    changes = [change(3, 1, "paused"), change(3, 2, "not admitted")]
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
