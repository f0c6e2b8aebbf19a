"""What the records of a run say about it."""

from __future__ import annotations

import os

import pytest

from fedif_consortium.watch.page import render
from fedif_consortium.watch.state import SILENCE, Watched, WatchedMember
from fedif_flower.attribution.quarantine import Decision
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from tests.consortium.watch.made import NOW, asked, client, make_folder

LARGE = 2**63 + 7  # A node id beyond signed numbers, which a float would round.


def watched(folder: RunFolder, now: float = NOW) -> Watched:
    """Look at a run whose tables were written at the moment :data:`NOW`."""
    for file in (folder.config, folder.rounds, folder.clients):
        if file.path.exists():
            os.utime(file.path, (NOW, NOW))
    return Watched(folder, now)


@pytest.mark.parametrize(
    ("live", "summary", "later", "state"),
    [
        ({}, None, SILENCE - 1, "running"),
        ({}, None, SILENCE + 1, "stopped"),
        ({"time": NOW + 100}, None, SILENCE + 99, "running"),
        ({"phase": "stopped"}, None, 0, "stopped"),
        ({"phase": "failed"}, None, 0, "failed"),
        ({"phase": "finished"}, None, 0, "stopped"),  # It could not write its summary.
        ({"phase": "finished"}, {"last_round_failed": True}, 0, "failed"),
        (None, {"rounds": 3}, 0, "finished"),
    ],
)
def test_how_a_run_is(tmp_path, live, summary, later, state):
    folder = make_folder(tmp_path, live=live)
    if summary is not None:
        folder.summary.write(summary)
    assert watched(folder, NOW + later).state == state


def test_a_copy_of_a_run_that_was_killed_is_no_running_one(tmp_path):
    """A copy's files are as old as the copy; the run's last sign of life is what it wrote."""
    folder = make_folder(tmp_path, live={"time": NOW - 3600})
    seen = watched(folder)
    assert (seen.state, seen.last_sign) == ("stopped", NOW - 3600)


@pytest.mark.parametrize(("later", "state"), [(SILENCE - 1, "running"), (SILENCE + 1, "stopped")])
def test_a_run_that_wrote_nothing_but_its_settings_is_not_about_to_begin_for_ever(
    tmp_path, later, state
):
    folder = RunFolder(tmp_path)
    folder.config.write({"num-server-rounds": 10})
    seen = watched(folder, NOW + later)
    assert seen.state == state
    assert seen.last_sign == NOW


def test_the_end_is_estimated_by_the_last_rounds(tmp_path):
    live = {"round": 5, "since": NOW - 1}
    folder = make_folder(tmp_path, accuracies=[0.1, *[None] * 4], live=live)
    # Six rounds of 4 s are left; the fifth began a second ago.
    assert watched(folder).end == NOW - 1 + 6 * 4
    assert watched(folder, NOW + 30).end == NOW + 30  # It is overdue.
    folder.summary.write({"rounds": 4})
    assert watched(folder).end is None


def test_each_member_has_one_state_while_a_round_goes_on(tmp_path):
    lines = [client(1, i) for i in range(1, 10)]
    lines += [client(2, 4, "refused"), client(2, 5, "revoked"), client(2, 6), client(2, 9, "away")]
    live = {"round": 4, "asked": asked(1, 2, 3, 20), "answered": [2], "failed": [3]}
    live |= {"at_work": asked(7), "paused": [9], "online": [1, 2, 3, 4, 5, 6, 7, 9]}
    folder = make_folder(tmp_path, lines, live=live)
    folder.quarantine.begin()
    folder.quarantine.append([vars(Decision(2, 5, 6, 6, "worth -1"))])
    # Who needs a look comes first.
    assert [(member.client_id, member.state) for member in watched(folder).members] == [
        (4, "refused"),
        (3, "failed"),
        (6, "quarantined"),
        (5, "revoked"),
        (9, "paused"),
        (8, "offline"),
        (7, "late"),
        (1, "training"),
        (20, "training"),
        (2, "answered"),
    ]


def test_who_was_removed_while_nobody_waited_for_a_reply_is_revoked(tmp_path):
    live = {"round": 4, "asked": asked(1), "online": [1]}
    folder = make_folder(tmp_path, [client(1, 1), client(1, 2), client(1, 3)], live=live)
    folder.attendance.begin()
    for client_id, presence in ((1, "there"), (2, "offline"), (3, "offline"), (3, "revoked")):
        line = {"round": 2, "partition_id": 0, "client_id": client_id, "presence": presence}
        folder.attendance.append([line])
    assert [(member.client_id, member.state) for member in watched(folder).members] == [
        (3, "revoked"),
        (2, "offline"),
        (1, "training"),
    ]


LINES = [
    client(1, 7, weight=0.75, weight_score=0.5),
    client(1, LARGE, "refused", rejection='a, "quoted" reason'),
    client(2, 7, weight=0.25),
    client(2, LARGE, "away"),
    client(3, LARGE, "late"),
    client(3, 7, "failed", malicious=True),
]


def test_a_member_s_lines_are_summed_up(tmp_path):
    folder = make_folder(tmp_path, LINES, names={7: "Köln"})
    folder.attribution.begin()
    folder.attribution.append({"client_id": 7, "contribution": value} for value in (0.5, -0.125))
    with folder.clients.path.open("ab") as file:
        file.write(b"4,7,7,0,")  # A line that is still being written.
    known, large = Watched(folder).members
    assert known == WatchedMember(
        **{"client_id": 7, "partition_id": 7, "name": "Köln", "state": "failed"},
        **{"status": ["accepted", "accepted", "failed"], "rejection": "why", "malicious": True},
        **{"asked_in": [None] * 3},
        **{"weight": 1.0, "share": 1.0, "weight_score": 0.5, "contribution": 0.375},
    )
    assert (known.misses, large.misses) == (1, 3)
    assert (large.client_id, large.label, large.share) == (LARGE, f"client {LARGE % 100}", 0.0)


def test_a_late_reply_that_is_refused_is_a_miss_of_the_round_that_asked(tmp_path):
    """Asked in rounds 1 and 3, it has three lines and misses two requests."""
    lines = [client(1, 7, "late"), client(2, 7, "refused", asked_in=1), client(3, 7, "late")]
    [member] = watched(make_folder(tmp_path, lines)).members
    assert (member.requests, member.misses) == (2, 2)


def test_a_reply_that_came_late_answers_one_request(tmp_path):
    """It has a line where it was asked for, and one where it counts."""
    lines = [client(1, 7, "late"), client(2, 7, asked_in=1), client(3, 7, "late")]
    folder = make_folder(tmp_path, [*lines, client(1, 8)])
    members = {member.client_id: member for member in watched(folder).members}
    assert (members[7].status.count("accepted"), members[7].requests) == (1, 2)
    assert members[8].requests == 1
    assert '<td class="number">1 of 2</td>' in render(watched(folder))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("clients.csv", "round,client_id,status\n1,7,excellent\n"),
        ("clients.csv", "round,client_id,status\n1,seven,accepted\n"),
        ("quarantine.csv", "client_id,until_round\n7,soon\n"),
        ("rounds.csv", "test_accuracy\n0.5\n"),
        ("state.json", "{"),
        ("state.json", '{"time": "soon"}'),
        ("state.json", '{"time": 1, "asked": [1]}'),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path, file, content):
    folder = make_folder(tmp_path, LINES)
    (tmp_path / file).write_text(content)
    with pytest.raises(ConfigError, match=file.replace(".", r"\.")):
        _ = Watched(folder).members
