"""What an operator is told, and what to do."""

from __future__ import annotations

import pytest

from fedif_consortium.watch.remarks import remarks
from tests.consortium.watch.made import NOW, asked, client, make_folder
from tests.consortium.watch.test_state import watched

LIVE = {"time": NOW, "since": NOW, "round": 3}
HONEST = [client(t, i) for t in (1, 2) for i in (1, 2, 3, 4)]
ACCURACIES = [0.1, 0.5, 0.6]


def told(folder, now: float = NOW) -> list[str]:
    return [remark.text for remark in remarks(watched(folder, now))]


def test_nothing_is_said_of_a_run_that_goes_well(tmp_path):
    assert told(make_folder(tmp_path, HONEST, accuracies=ACCURACIES, live=LIVE)) == []


@pytest.mark.parametrize(
    ("live", "now", "said"),
    [
        ({"phase": "failed", "reason": "disk full"}, NOW, "ended with an error: disk full"),
        ({"phase": "stopped"}, NOW, "Somebody stopped the run"),
        ({}, NOW + 600, "no sign of life for 10 minutes"),
    ],
)
def test_why_a_run_does_not_go_on(tmp_path, live, now, said):
    folder = make_folder(tmp_path, HONEST, accuracies=ACCURACIES, live=LIVE | live)
    (remark,) = remarks(watched(folder, now))
    assert said in remark.text
    assert "resume" in remark.todo


@pytest.mark.parametrize(
    ("verdict", "said"),
    [("complete", []), ("incomplete", ["The run is incomplete."])],
)
def test_what_a_run_that_ended_lacks(tmp_path, verdict, said):
    folder = make_folder(tmp_path, HONEST, accuracies=ACCURACIES)
    folder.summary.write({"completeness": {"verdict": verdict, "reasons": ["ada was away."]}})
    assert told(folder) == said


def test_who_is_offline_is_named(tmp_path):
    live = LIVE | {"online": [1, 2, 4]}
    folder = make_folder(tmp_path, HONEST, accuracies=ACCURACIES, live=live)
    assert told(folder) == ["client 3 was not connected when this round began."]


def test_a_round_in_which_most_replies_do_not_count(tmp_path):
    lines = [client(2, 1), client(2, 2, "refused"), client(2, 3, "refused")]
    folder = make_folder(tmp_path, lines, accuracies=ACCURACIES, live=LIVE)
    assert "In round 2 only 1 of 3 replies counted." in told(folder)


def test_a_round_that_takes_far_longer_than_usual_names_who_is_waited_for(tmp_path):
    live = LIVE | {"asked": asked(1, 2, 3), "answered": [1]}
    names = {2: "Köln", 3: "Graz"}
    folder = make_folder(tmp_path, HONEST, accuracies=ACCURACIES, live=live, names=names)
    assert told(folder, NOW + 11) == []  # Usual are 4 s.
    (text,) = told(folder, NOW + 20)
    assert text == (
        "Round 3 has lasted 20 s, 5 times as long as usual. It waits for Köln and Graz."
    )


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("refused", "replies that were refused, 3 rounds in a row."),
        ("failed", "errors of its app, 3 rounds in a row."),
        ("away", "did not answer, however often it was asked, 3 rounds in a row."),
    ],
)
def test_a_member_that_gave_nothing_usable_three_times(tmp_path, status, said):
    lines = [client(t, i) for t in (1, 2, 3) for i in (1, 2, 3)]
    twice = [*lines, *(client(t, 9, status) for t in (1, 2))]
    accuracies = [0.1, 0.5, 0.6, 0.7]
    folder = make_folder(tmp_path, twice, accuracies=accuracies, live=LIVE)
    assert told(folder) == []
    folder.clients.append([client(3, 9, status)])
    (text,) = told(folder)
    assert text.startswith("client 9")
    assert said in text
    folder.clients.append([client(4, 9)])
    assert told(folder) == []
