"""Verdicts on tiny records, worked out by hand; who is told to be there, gone or kept away."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.messages.screening import ReplyStatus
from fedif_flower.run import presence
from fedif_flower.run.completeness import completeness
from fedif_flower.run.presence import Change, RollCall
from fedif_flower.run.report import turns_table
from fedif_flower.run.rows import Line
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.record import Round

NAMES = {1: "ada", 2: "bob", 3: "cyd"}


def line(
    number: int, client_id: int, status: ReplyStatus = "accepted", asked_in=None, **more
) -> Line:
    who = {"round": number, "client_id": client_id, "partition_id": client_id - 1}
    return {**who, "status": status, "asked_in": asked_in, **more}


def change(number: int, client_id: int, presence: str, at: str = "") -> list[Line]:
    return [line(number, client_id, presence=presence, at=at)]


def answers(client_id: int, *numbers: int, status: ReplyStatus = "accepted") -> list[Line]:
    return [line(number, client_id, status) for number in numbers]


ALL = [one for i in NAMES for one in answers(i, 1, 2, 3, 4)]
# Bob's first reply is late.
LATE = [*answers(1, 1, 2, 3, 4), line(1, 2, "late"), line(4, 2)]
TWO = {"online": 2, "pace.late-rounds": 2}
# Ada is at work as the run ends; bob never answered.
CUT = [*answers(1, 1, 2, 3), line(4, 1, "late"), *answers(2, 1, 2, 3, 4, status="late")]
# In rounds 2 to 4 two of three requests were made: bob missed 3 x 2/3 = 2 turns.
AWAY = [*answers(1, 1, 2, 3, 4), *answers(2, 1), *answers(3, 1, 2, 3, 4)]
GONE = change(2, 2, "offline", "2026-01-01 09:30:05")
SILENT = [*answers(1, 1, 2), *answers(2, 1, 2, status="away"), *answers(3, 1, 2)]
# Bob was once a round late, and so may be two rounds late at the end; cyd never was.
OPEN = [*answers(1, 1, 2, 3, 4), line(1, 2, "late"), line(2, 2, asked_in=1), line(2, 2, "late")]
OPEN += [*answers(3, 1), line(2, 3, "late")]
THREE = {"pace.late-rounds": 3}
# Of two, one is there from round 2 on.
ALONE = [*answers(1, 1, 2, 3, 4), *answers(2, 1)]
ANY = {"rounds": 2, "least-participation": 0.0}
LEFT = [*ALL[:8], *answers(3, 1)]
REVOKED = [*change(1, 3, "there", "2026-01-01 09:00:00"), *change(2, 3, "revoked", "09:30")]
# Ada is paused after errors; bob is in quarantine, and misses no turn.
HELD = [*answers(1, 1, 2, status="failed"), *answers(2, 1, 2), *answers(3, 1, 2, 3, 4)]
HOLDS = {"changes": [*change(3, 1, "paused"), *change(3, 2, "not admitted")], "online": 1}
GAPS = "complete with gaps"
SEEN = "last seen: round 1, 2026-01-01 09:30:05 UTC"


@pytest.mark.parametrize(
    ("lines", "more", "letters", "verdict", "words"),
    [
        (ALL, {}, {"ada": "++++"}, "complete", "Every request was answered."),
        (ALL, {"failed": {2}}, {}, GAPS, "1 of 4 rounds failed."),
        (ALL, {"failed": {4}}, {}, "incomplete", "The last round failed."),
        (ALL, {"num-server-rounds": 4}, {}, "complete", "Every request was answered."),
        (ALL, {"num-server-rounds": 9}, {}, GAPS, "Only 4 of 9 rounds are there. Every"),
        (AWAY, {"num-server-rounds": 9, "changes": GONE}, {}, "incomplete", "Only 4 of 9 rounds"),
        (LATE, TWO, {"bob": "-..+"}, GAPS, "1 of 2 members missed turns: bob (50 %)."),
        ([*LATE, line(2, 2, "away", 1)], TWO, {"bob": "-..+"}, GAPS, "bob (50 %)."),
        ([*LATE, line(2, 2, "refused", 1)], TWO, {"bob": "x..+"}, GAPS, "bob (50 %)."),
        (CUT, {"pace.rounds": "buffered"}, {"ada": "+++>", "bob": "----"}, "incomplete", "bob"),
        (CUT, {}, {"ada": "+++-"}, "incomplete", "bob"),
        (AWAY, {"changes": GONE}, {"bob": "+ooo"}, "incomplete", f"turns: bob (33 %; {SEEN})."),
        (AWAY, {"changes": GONE, "least-participation": 0.3}, {}, GAPS, "bob"),
        (ALONE, {"changes": GONE, "online": 1}, {}, "incomplete", f"turns: bob (25 %; {SEEN})."),
        (OPEN, THREE, {"bob": "~>..", "cyd": "+-.."}, GAPS, "1 of 3 members missed turns: cyd"),
        ([*OPEN, line(3, 2, "away", 2)], THREE, {"bob": "~-.."}, GAPS, "bob (50 %)"),
        (SILENT, ANY, {"bob": "--"}, GAPS, "Never answered: bob (never answered)."),
        (SILENT, {"rounds": 2, "changes": GONE}, {}, "incomplete", f"(never answered; {SEEN})"),
        (LEFT, {"changes": REVOKED}, {"cyd": "+rrr"}, GAPS, "cyd (100 %; registration ended; last"),
        (HELD, HOLDS, {"ada": "--pp", "bob": "++qq"}, "incomplete", "turns: ada (never answered)."),
    ],
)
def test_a_verdict_says_who_lacks_what(lines, more, letters, verdict, words):
    case = {"rounds": 4, "online": 3, "failed": (), "changes": (), **more}
    rounds = []
    for number in range(case["rounds"] + 1):
        status = "failed" if number in case["failed"] else "advanced"
        rounds.append(Round(number, num_online=case["online"], status=status).line())
    judged = completeness(rounds, lines, case["changes"], NAMES, settings=case)
    assert {m.name: m.rounds for m in judged.members if m.name in letters} == letters
    assert judged.verdict == verdict
    assert words in judged.headline


def test_half_of_the_turns_are_a_half_whatever_thirds_add_up_to():
    """Of three members one is asked: bob answers 12 rounds, and is offline for 36 thirds of one."""
    lines = []
    for number in range(1, 49):
        client_id = 2 if number <= 12 else 1
        lines += answers(client_id, number)
    rounds = [Round(number, num_online=3).line() for number in range(1, 49)]
    gone = change(13, 2, "offline")
    judged = completeness(rounds, lines, gone, NAMES, {"least-participation": 0.5})
    assert (judged.members[0].name, judged.members[0].participation) == ("bob", 0.5)
    assert judged.verdict == GAPS


def test_less_than_a_half_does_not_read_as_a_half():
    """Bob answers 124 of 250 requests: 49.6 %."""
    lines = [*answers(2, *range(1, 125)), *answers(2, *range(125, 251), status="away")]
    rounds = [Round(number, num_online=1).line() for number in range(1, 251)]
    for least, words in ((0.5, "50 %"), (0.505, "50.5 %")):
        judged = completeness(rounds, lines, (), NAMES, {"least-participation": least})
        assert f"in less than {words} of their turns: bob (49 %)." in judged.headline
    assert turns_table(judged.members).lines[0][-2] == "49 %"


@pytest.mark.parametrize(
    ("online", "words"),
    [
        (2, "Every request was answered. Never drawn: 1 member: cyd (never asked)."),
        # Three are in no table.
        (5, "Every request was answered. Never drawn: 4 members."),
    ],
)
def test_who_was_there_and_never_drawn_is_counted(online, words):
    rounds = [Round(number, num_online=online).line() for number in range(1, 5)]
    judged = completeness(rounds, answers(1, 1, 2, 3, 4), change(1, 3, "there"), NAMES, {})
    assert judged.headline == f"Complete: {words}"


def test_a_report_tells_in_how_many_rounds_nobody_was_to_ask_a_member():
    rounds = [Round(number, num_online=1).line() for number in range(1, 5)]
    held = completeness(rounds, HELD, HOLDS["changes"], NAMES, {})
    table = turns_table([member for member in held.members if member.count["not admitted"]])
    assert table.heading == (
        *("member", "asked", "answered", "late", "missing", "refused", "paused", "offline"),
        *("not admitted", "took part in", "last seen"),
    )
    assert table.lines == [["bob", "2", "2", "0", "0", "0", "0", "0", "2", "100 %", ""]]


NODES = {i: ClientNode(i - 1000, i) for i in (1000, 1001, 1002)}


class Roll:
    """Roll calls over nodes 1000 to 1002, of which `gone` are away."""

    def __init__(self, monkeypatch) -> None:
        self.grid = ScreenedGrid(LocalGrid(lambda message, _: message, 3))
        self.roll = RollCall()
        self.now = 0.0
        self.online = []
        clocks = SimpleNamespace(time=self.tick, monotonic=lambda: self.now)
        monkeypatch.setattr(presence, "time", clocks)

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def call(
        self, *gone: int, paused=(), barred=(), at_work=()
    ) -> list[tuple[int, str, float | None]]:
        online = [node for i, node in NODES.items() if i not in gone]
        # As a directory has it: another list only where others are there.
        if online != self.online:
            self.online = online
        current = Round(
            1,
            online=self.online,
            paused=set(paused),
            at_work=[NODES[i] for i in at_work],
            candidates=[n for n in online if n.node_id not in (*paused, *barred)],
            grid=self.grid,
        )
        changes = self.roll.call(current, SimpleNamespace(known=list(NODES.values())))
        return [(c.node.node_id, c.presence, c.at) for c in changes]


@pytest.fixture
def roll(monkeypatch) -> Roll:
    return Roll(monkeypatch)


def test_only_news_is_told(roll):
    assert roll.call() == [(i, "there", 1.0) for i in (1000, 1001, 1002)]
    assert roll.call() == []
    # It was there at the second call.
    assert roll.call(1001) == [(1001, "offline", 2.0)]
    assert roll.call(1001) == []
    assert roll.call() == [(1001, "there", 5.0)]


def test_whose_registration_ended_is_no_member_any_more(roll, monkeypatch):
    roll.call()
    polling = SimpleNamespace(
        unregistered=lambda nodes: set(nodes) & {1002}, last_seen=lambda node_id: node_id + 0.5
    )
    monkeypatch.setattr(ScreenedGrid, "polling", polling)
    assert roll.call(1001, 1002) == [(1001, "offline", 1001.5), (1002, "revoked", 1002.5)]


def test_whose_registration_ends_while_it_is_offline_is_looked_up_once_a_minute(roll, monkeypatch):
    looked_up = []
    ended = set()

    def unregistered(nodes):
        looked_up.append(list(nodes))
        return ended & set(looked_up[-1])

    polling = SimpleNamespace(unregistered=unregistered, last_seen=lambda _: 1.5)
    monkeypatch.setattr(ScreenedGrid, "polling", polling)
    roll.call()
    assert roll.call(1001, 1002) == [(1001, "offline", 1.5), (1002, "offline", 1.5)]
    ended.add(1002)
    assert roll.call(1001, 1002) == [(1002, "revoked", 1.5)]
    ended.add(1001)
    assert roll.call(1001, 1002) == []
    roll.now += 60.0
    assert roll.call(1001, 1002) == [(1001, "revoked", 1.5)]
    roll.now += 60.0
    assert roll.call(1001, 1002) == []
    assert looked_up == [[1001, 1002], [1001, 1002], [1001]]
    # Who is offline as a run goes on is looked up at once.
    roll.roll = RollCall()
    for client_id, word in ((1000, "there"), (1001, "offline"), (1002, "revoked")):
        roll.roll.go_on([Change(NODES[client_id], word, None).line(1)], is_simulated=False)
    assert roll.call(1001, 1002) == [(1001, "revoked", 1.5)]


def test_of_many_that_are_offline_some_are_looked_up_at_a_time(roll, monkeypatch):
    monkeypatch.setattr(presence, "_MOST_LOOKED_UP", 1)
    looked_up = []
    polling = SimpleNamespace(
        unregistered=lambda nodes: set(looked_up.append(list(nodes)) or ()),
        last_seen=lambda _: 1.5,
    )
    monkeypatch.setattr(ScreenedGrid, "polling", polling)
    roll.call()
    roll.call(1001, 1002)
    for _ in range(3):
        roll.now += 60.0
        assert roll.call(1001, 1002) == []
    assert looked_up == [[1001, 1002], [1001], [1002], [1001]]


def test_nobody_counts_on_a_member_that_is_removed_while_it_is_offline():
    """Bob is offline in round 2, and removed before round 3: he missed one turn, not three."""
    changes = [*GONE, *change(3, 2, "revoked")]
    rounds = [Round(number, num_online=2).line() for number in range(1, 5)]
    judged = completeness(rounds, AWAY, changes, NAMES, {})
    bob = next(member for member in judged.members if member.name == "bob")
    assert (bob.rounds, bob.participation, bob.revoked_in) == ("+orr", 0.5, 3)
    assert judged.verdict == "complete with gaps"


def test_a_reply_says_that_a_registration_ended_before_the_roll_call_does():
    replies = [*answers(1, 1, 2, 3, 4), *answers(2, 1), *answers(2, 2, status="revoked")]
    rounds = [Round(number, num_online=1).line() for number in range(1, 5)]
    for changes in ([], change(3, 2, "revoked")):
        judged = completeness(rounds, replies, changes, NAMES, {})
        assert {member.name: member.revoked_in for member in judged.members} == {
            "ada": None,
            "bob": 2,
        }


def test_pauses_and_what_ends_them(roll):
    roll.call()
    assert roll.call(paused=[1000], barred=[1001]) == [
        (1000, "paused", 2.0),
        (1001, "not admitted", 2.0),
    ]
    assert roll.call(paused=[1000]) == [(1001, "there", 3.0)]
    assert roll.call(1000) == [(1000, "offline", 3.0)]
    assert roll.call() == [(1000, "there", 5.0)]


def test_whoever_is_paused_as_a_run_stops_is_there_again_when_it_goes_on():
    nodes = [ClientNode(number, 50 + number, is_simulated=True) for number in range(3)]
    known = SimpleNamespace(known=nodes)
    before = RollCall()
    lines = []
    for server_round, paused in ((2, {0, 1}), (3, {1, 2})):
        candidates = [node for node in nodes if node.partition_id not in paused]
        current = Round(server_round, online=nodes, paused=paused, candidates=candidates)
        lines += [change.line(server_round) for change in before.call(current, known)]
    assert [(line["client_id"], line["presence"]) for line in lines] == [
        (0, "paused"),
        (1, "paused"),
        (2, "paused"),
        (0, "there"),
    ]
    again = RollCall()
    again.go_on(lines, is_simulated=True)
    current = Round(4, online=nodes, paused={2}, candidates=nodes[:2])
    told = [(change.node.client_id, change.presence) for change in again.call(current, known)]
    assert told == [(1, "there")]


def test_a_run_that_goes_on_tells_of_real_members_what_is_new(roll):
    """1000 was paused as it stopped, and 1001 offline; 1002 left and 1001 came meanwhile."""
    roll.call()
    roll.call(1001, paused=[1000])
    told = {1000: ["there", "paused"], 1001: ["there", "offline"], 1002: ["there"]}
    roll.roll = RollCall()
    for client_id, words in told.items():
        lines = [Change(NODES[client_id], word, None).line(1) for word in words]
        roll.roll.go_on(lines, is_simulated=False)
    roll.online = []
    assert [(who, what) for who, what, _ in roll.call(1002)] == [
        (1002, "offline"),
        (1001, "there"),
        (1000, "there"),
    ]
    assert roll.call(1002) == []


def test_a_barred_member_is_told_though_somebody_at_work_is_offline(roll):
    roll.call()
    told = roll.call(1002, at_work=[1002], barred=[1001])
    assert [(who, what) for who, what, _ in told] == [(1002, "offline"), (1001, "not admitted")]
    assert roll.call(1002, at_work=[1002], barred=[1001]) == []


def test_that_a_simulated_member_is_there_is_not_told():
    simulated = [ClientNode(0, 5, is_simulated=True)]
    current = Round(1, members=simulated, online=simulated, candidates=simulated)
    assert RollCall().call(current, SimpleNamespace(known=simulated)) == []
