"""What the records of a run say about it."""

from __future__ import annotations

import os

import pytest

from fedif_consortium.watch.state import SILENCE, Watched, WatchedMember
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from fedif_flower.strategies.quarantine import Decision
from tests.consortium.watch.made import NOW, asked, client, make_folder

LARGE = 2**63 + 7  # A node id beyond signed numbers, which a float would round.


def watched(folder: RunFolder, now: float = NOW) -> Watched:
    """Look at a run whose tables were written at the moment :data:`NOW`."""
    for table in (folder.rounds, folder.clients):
        if table.path.exists():
            os.utime(table.path, (NOW, NOW))
    return Watched(folder, now)


def test_a_run_is_running_while_it_gives_signs_of_life(tmp_path):
    folder = make_folder(tmp_path, accuracies=[0.1, 0.5], live={"time": NOW + 100})
    assert watched(folder, NOW + 100 + SILENCE - 1).state == "running"
    assert watched(folder, NOW + 100 + SILENCE + 1).state == "stopped"


@pytest.mark.parametrize(
    ("phase", "summary", "state"),
    [
        ("stopped", None, "stopped"),
        ("failed", None, "failed"),
        ("finished", None, "stopped"),  # It could not write its summary.
        ("finished", {"last_round_failed": True}, "failed"),
        (None, {"rounds": 3}, "finished"),
    ],
)
def test_how_a_run_ended(tmp_path, phase, summary, state):
    folder = make_folder(tmp_path, accuracies=[0.1], live=phase and {"phase": phase, "time": NOW})
    if summary is not None:
        folder.summary.write(summary)
    assert watched(folder).state == state


def test_the_end_is_estimated_by_the_last_rounds(tmp_path):
    live = {"round": 5, "since": NOW - 1, "time": NOW}
    folder = make_folder(tmp_path, accuracies=[0.1, *[None] * 4], live=live, num_rounds=10)
    # Six rounds of 4 s are left; the fifth began a second ago.
    assert watched(folder).end == NOW - 1 + 6 * 4
    assert watched(folder, NOW + 30).end == NOW + 30  # It is overdue.
    folder.summary.write({"rounds": 4})
    assert watched(folder).end is None


def test_each_member_has_one_state_while_a_round_goes_on(tmp_path):
    lines = [client(1, i) for i in range(1, 10)]
    lines += [client(2, 4, "refused"), client(2, 5, "revoked"), client(2, 6), client(2, 9, "away")]
    live = {
        "round": 3,
        "time": NOW,
        "asked": asked(1, 2, 3, 20),
        "answered": [2],
        "failed": [3],
        "at_work": asked(7),
        "paused": [9],
        "online": [1, 2, 3, 4, 5, 6, 7, 9],
    }
    folder = make_folder(tmp_path, lines, accuracies=[0.1, 0.2, 0.3], live=live)
    folder.quarantine.begin()
    folder.quarantine.append([vars(Decision(2, 5, 6, 6, "worth -1"))])
    run = watched(folder)
    assert {member.id: member.state for member in run.members} == {
        1: "training",
        2: "answered",
        3: "failed",
        4: "refused",
        5: "revoked",
        6: "quarantined",
        7: "late",
        8: "offline",
        9: "paused",
        20: "training",
    }
    # Who needs a look comes first.
    order = ["refused", "failed", "quarantined", "revoked", "paused", "offline", "late"]
    assert [member.state for member in run.members][:7] == order


LINES = [
    client(1, 7, weight=0.75, weight_score=0.5),
    client(1, LARGE, "refused", rejection='a, "quoted" reason'),
    client(2, 7, weight=0.25),
    client(2, LARGE, "away"),
    client(3, LARGE, "late"),
    client(3, 7, "failed", malicious=True),
]


def test_a_member_s_lines_are_summed_up(tmp_path):
    contributions = {(1, 7): 0.5, (2, 7): -0.125}
    folder = make_folder(tmp_path, LINES, contributions=contributions, names={7: "Köln"})
    with folder.clients.path.open("ab") as file:
        file.write(b"4,7,7,0,")  # A line that is still being written.
    assert Watched(folder).members == [
        WatchedMember(
            id=7,
            label="Köln",
            state="failed",
            asked=3,
            accepted=2,
            misses=1,
            last_status="failed",
            reason="why",
            share=1.0,
            weight_score=0.5,
            contribution=0.375,
            malicious=True,
        ),
        WatchedMember(
            id=LARGE,
            label=f"client {LARGE % 100}",
            state="late",
            asked=3,
            misses=3,
            last_status="late",
            reason="why",
            share=0.0,
        ),
    ]


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
